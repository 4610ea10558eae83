"""Private names of torch's compiler, each probed because a release may lack it, and what stands in their place.

Kernels that do nothing stand in for those that g++ or Triton would compile. Importing this file imports the compiler,
and replacements are for good: only the subprocess does either. ``live.compat`` has all other names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from importlib import import_module
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from ..data.capability import AMPERE, Capability
from ..data.errors import UnsupportedError
from ..data.memory_records import PADDED
from ..data.units import MIB
from ..live import compat
from ..live.compat import place, probe
from ..live.cuda_calls import always
from ..ops.backends import FORMATS, keeps_last_on_cuda
from ..ops.scratch.cuda.cudnn.queries import Card
from ..ops.shapes.registry import is_channels_last
from ..step.autograd.functions import attention

_ALL = "compiled=True is answered with the estimate of the uncompiled step"

CONTEXT: Any = probe("torch._dynamo.eval_frame:_TorchDynamoContext", _ALL)
"""The class that calls a compiled function."""
Inductor: Any = probe("torch:_TorchCompileInductorWrapper", _ALL)
innermost_backend: Any = probe("torch._dynamo.eval_frame:innermost_backend", _ALL)
counters: Any = probe("torch._dynamo.utils:counters", _ALL)
"""How many graphs the process has compiled, among other figures."""
compiled_code: Any = probe("torch._dynamo.eval_frame:_debug_get_cache_entry_list", _ALL)
is_skipped: Any = probe("torch._dynamo.trace_rules:check", _ALL)
in_a_frame: Any = probe("torch._dynamo.external_utils:wrap_inline", _ALL)
"""Gives a function that Dynamo skips, such as the forward of a module of torch, a frame that it does not."""
skip_package: Any = probe("torch._dynamo.trace_rules:add", _ALL)
without_function_mode: Any = probe("torch.overrides:_pop_mode_temporarily", _ALL)
innermost_mode: Any = probe("torch.utils._python_dispatch:_get_current_dispatch_mode", _ALL)
FakeTensorMode: Any = probe("torch._subclasses.fake_tensor:FakeTensorMode", _ALL)
functorch_config: Any = probe("torch._functorch:config", _ALL)
inductor_config: Any = probe("torch._inductor:config", _ALL)
_RANDOM = "torch._prims.rng_prims"
RANDOM: Any = probe(f"{_RANDOM}:run_and_save_rng_state", _ALL), probe(f"{_RANDOM}:run_with_rng_state", _ALL)
"""Run an operator that draws random numbers, and run it again with the same ones."""
BACKEND_SELECT: Any = probe("torch:_C.DispatchKey.BackendSelect", _ALL)
RANDOM_ON_CUDA: Any = probe(f"{_RANDOM}:graphsafe_run_with_rng_state", _ALL)
"""Does both, with a generator of its own for each."""

INSTALL_GLOBAL = "torch._dynamo.output_graph:OutputGraph.install_global_unsafe"
COMPILE_FORWARD = "torch._inductor.compile_fx:compile_fx_forward"
IS_RECOMPILED = "torch._dynamo.convert_frame:has_tensor_in_frame"
"""Whether a frame without compiled code that fits is an error under the stance "fail_on_recompile"."""


def put(where: str, value: Any) -> None:
    """Put a value in place of a name. Raises :class:`UnsupportedError` if this release has no such name."""
    place(where, _ALL).set(value)


def wrap(where: str, replacement: Callable[..., Any]) -> None:
    """Have ``replacement`` called in place of a function, with that function as its first argument."""
    own = place(where, _ALL).value
    put(where, wraps(own)(lambda *args, **kwargs: replacement(own, *args, **kwargs)))


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing, as a compiled kernel; one of Triton is called by its ``run``."""


nothing.run = nothing  # type: ignore[attr-defined]


def compile_nothing() -> None:
    """Replace all kernels by ones that do nothing, and what generated code allocates by operators, which a pass sees.

    No cache is read or written, no compiler is looked for, and no address is.
    """
    for kind in ("cpp_pybinding", "cpp", "triton", "multi_kernel", "wait"):
        put(f"torch._inductor.async_compile:AsyncCompile.{kind}", always(nothing))
    put("torch._inductor.cpp_builder:get_cpp_compiler", always("g++"))
    put("torch._inductor.cpp_builder:is_gcc", always(True))  # Since torch 2.14, it asks the compiler for its version.
    put("torch._inductor.cpu_vec_isa:VecISA.check_build", always(True))
    generated = "torch._C._dynamo.guards"
    for device in ("cpu", "cuda"):
        empty = partial(torch.empty_strided, device=device)
        put(f"{generated}:_empty_strided_{device}", lambda size, stride, dtype, f=empty: f(size, stride, dtype=dtype))
    reinterpret = lambda x, size, stride, offset=0: x.as_strided(size, stride, x.storage_offset() + offset)  # noqa: E731
    put(f"{generated}:_reinterpret_tensor", reinterpret)
    put(f"{generated}:assert_alignment", nothing)
    put("torch._inductor.compile_fx:get_input_idxs_to_check", always(()))
    inductor_config.force_disable_caches, inductor_config.compile_threads = True, 1
    functorch_config.enable_autograd_cache = False
    functorch_config.force_non_lazy_backward_lowering = True


class Guard(nullcontext[None]):
    """A context for a device, which does nothing."""


class Generator(torch.Generator):
    """A generator of the CPU that says that it is the GPU's."""

    device = torch.device("cuda", 0)

    def clone_state(self) -> Generator:
        """Return another one, since its numbers do not matter."""
        return Generator()


def stand_in_for_gpu(card: Card, capability: Capability, notes: dict[str, int]) -> None:
    """Answer for a GPU and for Triton; ``notes`` gets what only the GPU decides, and the bytes that this may move."""

    def has_bfloat16(*_: Any, **__: Any) -> bool:
        if capability < AMPERE:
            raise UnsupportedError("torch compiles no code with bfloat16 for this GPU, and runs it as it is")
        return True

    def should_pad(match: Any, first: torch.Tensor, second: torch.Tensor, *_: Any, **__: Any) -> bool:
        if inductor_config.force_shape_pad:
            return True
        sizes = (*first.shape, second.shape[-1])  # Symbolic under dynamic=True, where asking for a number would fix it.
        known = (size.node.hint if isinstance(size, torch.SymInt) else size for size in sizes)
        *batch, m, k, n = (-(-size // 8) * 8 for size in known)  # At most to these.
        notes[PADDED] = max(notes.get(PADDED, 0), prod(batch) * (m * k + k * n + m * n) * first.itemsize)
        return False

    properties = _properties(card, capability)
    stream = SimpleNamespace(cuda_stream=0, stream_id=0, device_index=0, device_type=1)
    shared = {"get_device_properties": always(properties), "current_stream": always(stream), "device": Guard}
    interface = "torch._dynamo.device_interface:CudaInterface"
    answers = {
        f"{owner}{name}": answer for owner in ("torch.cuda:", f"{interface}.") for name, answer in shared.items()
    }
    answers |= {
        "torch.cuda:_DeviceGuard": Guard,
        "torch.cuda:_lazy_init": nothing,
        "torch.cuda:default_generators": (Generator(),),
        "torch.cuda:get_device_name": always(card.name),
        "torch.cuda:get_rng_state": always(torch.zeros(16, dtype=torch.uint8)),
        "torch.cuda:set_device": nothing,
        "torch.cuda:set_rng_state": nothing,
        f"{interface}.Worker.current_device": always(0),
        f"{interface}.Worker.get_device_properties": always(properties),
        f"{interface}.current_device": always(0),
        f"{interface}.device_count": always(1),
        f"{interface}.is_bf16_supported": has_bfloat16,
        f"{interface}.raise_if_triton_unavailable": nothing,
        "torch._inductor.fx_passes.pad_mm:_should_pad": should_pad,
        "torch._inductor.fx_passes.pad_mm:has_triton": always(True),
        "torch._inductor.scheduler:has_triton": always(True),
        "torch.utils._triton:triton_hash_with_backend": always(""),
        "torch._subclasses.fake_tensor:FakeTensorMode.avoid_device_init": property(always(True)),
        # No values are followed while a graph is made, not even an empty tensor's, which may be moved to the GPU.
        "torch.fx.experimental.proxy_tensor:CONSTANT_NUMEL_LIMIT": -1,
    }
    for where, answer in answers.items():
        put(where, answer)
    for name in ("_cuda_getCurrentRawStream", "_cuda_getDevice"):  # Which a CPU build lacks.
        setattr(torch._C, name, always(0))
    for part in ("joint_graph", "post_grad"):  # These trace inductor's patterns, on real tensors: on the CPU.
        where = f"torch._inductor.fx_passes.{part}:lazy_init"
        trace = place(where, _ALL).value
        if not trace.cache_info().currsize:  # Otherwise the process has compiled before, and has them.
            with compat.replaced({(torch.cuda, "is_available"): always(False)}):
                trace(torch.device("cpu"))
        put(where, nothing)
    wrap("torch._inductor.fx_passes.joint_graph:UniformValueConstantFolder._deduce_value", _fold_on_cpu)
    wrap("torch:_C._select_conv_backend", _choose_backend)
    wrap("torch:_C._conv_determine_backend_memory_format", _suggest_layout)
    composite = probe("torch:_C.DispatchKey.CompositeImplicitAutograd", _ALL)
    torch.ops.aten.scaled_dot_product_attention.default.py_impl(composite)(_attend)
    if not place("torch.utils._triton:has_triton_package", _ALL).value():
        version = "torch._inductor.utils:get_triton_attrs_descriptor_version"
        put(version, always(place(version, _ALL).value()))
        import_module("torch._inductor.runtime.triton_heuristics")  # While it finds no Triton.
        triton, language = ModuleType("triton"), ModuleType("triton.language")
        vars(triton).update(language=language, __version__="3.0.0")
        sys.modules.update({"triton": triton, "triton.language": language})


def _properties(card: Card, capability: Capability) -> Any:
    return SimpleNamespace(
        name=card.name,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=card.multiprocessors,
        total_memory=card.memory_mib * MIB,
        regs_per_multiprocessor=1 << 16,
        max_threads_per_multi_processor=card.threads_per_multiprocessor,
        max_threads_per_block=1024,
        warp_size=32,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=card.shared_per_block,
        shared_memory_per_multiprocessor=card.shared_per_block + 1024,
        L2_cache_size=card.l2_bytes,
        gcnArchName="",
        is_integrated=0,
    )


def _fold_on_cpu(own: Callable[..., Any], folder: Any, node: Any) -> Any:
    """Fold a graph's constants, for which inductor creates real tensors."""
    kwargs = node.kwargs
    node.kwargs = {**kwargs, "device": torch.device("cpu")} if "device" in kwargs else kwargs
    try:
        return own(folder, node)
    finally:
        node.kwargs = kwargs


def _attend(query: Any, *call: Any, **how: Any) -> Any:
    """Trace attention on CUDA as the kernel that torch would choose there."""
    math = torch.ops.aten._scaled_dot_product_attention_math
    if query.device.type == "cuda":
        return attention(math, query, *call, **how)
    return math(query, *call, **how)[0]


def _choose_backend(own: Callable[..., Any], x: Any, weight: Any, **how: Any) -> Any:
    """Return, for a convolution on CUDA, whether cuDNN's kernels run, whose layouts a CPU build does not know."""
    if x.device.type == "cuda":
        return keeps_last_on_cuda(x.dtype, how["stride"], how["output_padding"])
    return own(x, weight, **how)


def _suggest_layout(own: Callable[..., Any], x: Any, weight: Any, keeps_last: Any) -> Any:
    if not isinstance(keeps_last, bool):
        return own(x, weight, keeps_last)
    last = keeps_last and (is_channels_last(x) or is_channels_last(weight))
    return FORMATS[x.dim()] if last else torch.contiguous_format
