"""Generate the C source of the other functions: those that do nothing, that fail, or that call the real cuDNN."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benchmarks.nocuda.headers import NOT_SUPPORTED, Prototype

HEAD = """\
// Generated from the undefined symbols of the wheel's libraries.
#include <stdio.h>
#include <stdlib.h>
void nocuda_refuse(const char *);
void *nocuda_cudnn(const char *);
"""
NOTHING = "int {name}(void) {{ return 0; }}\n"
REFUSING = 'int {name}(void) {{ nocuda_refuse("{name}"); return {code}; }}\n'
ENDING = """\
void {name}(void) {{
  fprintf(stderr, "nocuda: {name} is not supported and cannot report an error; the process ends\\n");
  abort();
}}
"""
FORWARD = """\
__attribute__((visibility("hidden"))) void *nocuda_real_{name};
__asm__(".globl {name}\\n.type {name}, @function\\n{name}: jmp *nocuda_real_{name}(%rip)");
"""
TELLING = 'const char *{name}(void) {{ return "refused by the no-op runtime (see stderr)"; }}\n'


def source(symbols: Iterable[str], prototypes: Mapping[str, Prototype], forwards: bool = False) -> str:
    """Return C code that defines every symbol.

    With ``forwards``, functions of cuDNN that take no handle call the real library, which is found on loading.
    """
    lines, forwarded = [HEAD], []
    for name in sorted(symbols):
        prototype = prototypes.get(name)
        if forwards and prototype is not None and not prototype.takes_handle:
            forwarded.append(name)
            lines.append(FORWARD.format(name=name))
        elif prototype is not None and prototype.status == "const char":
            lines.append(TELLING.format(name=name))
        elif prototype is None or prototype.status not in NOT_SUPPORTED:
            lines.append(ENDING.format(name=name))
        elif prototype.does_nothing:
            lines.append(NOTHING.format(name=name))
        else:
            lines.append(REFUSING.format(name=name, code=NOT_SUPPORTED[prototype.status]))
    if forwarded:
        body = "".join(f'  nocuda_real_{name} = nocuda_cudnn("{name}");\n' for name in forwarded)
        lines.append(f"__attribute__((constructor)) static void find_real(void) {{\n{body}}}\n")
    return "".join(lines)
