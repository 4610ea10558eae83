"""Private names of torch's compiler, each probed because a release may lack it. ``live.compat`` has all others.

Importing this file imports the compiler, so only the subprocess does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ..live.versions import Place, place, probe

_ALL = "compiled=True is answered with the estimate of the uncompiled step"
_CUDA = f"{_ALL} on CUDA"

# Kernels that g++ or Triton would compile.
_COMPILER = "torch._inductor.async_compile:AsyncCompile"
_KINDS = "cpp_pybinding", "cpp", "triton", "multi_kernel", "wait"
KERNELS = tuple(place(f"{_COMPILER}.{kind}", _ALL) for kind in _KINDS)
# What looks for a compiler, which generated code takes into account, and what compiles a program to try the processor.
COMPILER: Place = place("torch._inductor.cpp_builder:get_cpp_compiler", _ALL)
CHECK_PROCESSOR: Place = place("torch._inductor.cpu_vec_isa:VecISA.check_build", _ALL)

# What generated code calls.
_GUARDS = "torch._C._dynamo.guards"
EMPTY = (
    ("cpu", place(f"{_GUARDS}:_empty_strided_cpu", _ALL)),
    ("cpu", place(f"{_GUARDS}:_empty_strided_cpu_pinned", _ALL)),
    ("cuda", place(f"{_GUARDS}:_empty_strided_cuda", _CUDA)),
)
REINTERPRET: Place = place(f"{_GUARDS}:_reinterpret_tensor", _ALL)
CHECK_ALIGNMENT: Place = place(f"{_GUARDS}:assert_alignment", _ALL)
CHECKED_INPUTS: Place = place("torch._inductor.compile_fx:get_input_idxs_to_check", _ALL)
"""Names the inputs whose addresses are looked at, to copy them if they are not aligned."""
_RANDOM = "torch._prims.rng_prims"
RANDOM: Any = probe(f"{_RANDOM}:run_and_save_rng_state", _ALL), probe(f"{_RANDOM}:run_with_rng_state", _ALL)
"""Run an operator that draws random numbers, and run it again with the same ones."""
RANDOM_ON_CUDA: Any = probe(f"{_RANDOM}:graphsafe_run_with_rng_state", _CUDA)
"""Does both, with a generator of its own for each."""
BACKEND_SELECT: Any = probe("torch:_C.DispatchKey.BackendSelect", _ALL)

# Dynamo.
CHECK_GUARDS: Place = place("torch._dynamo.guards:CheckFunctionManager.__init__", _ALL)
INSTALL_GLOBAL: Place = place("torch._dynamo.output_graph:OutputGraph.install_global_unsafe", _ALL)
CONTEXT_INIT: Place = place("torch._dynamo.eval_frame:_TorchDynamoContext.__init__", _ALL)
COMPILE: Place = place("torch:_TorchCompileInductorWrapper.__call__", _ALL)
COMPILE_FORWARD: Place = place("torch._inductor.compile_fx:compile_fx_forward", _ALL)
IS_RECOMPILED: Place = place("torch._dynamo.convert_frame:has_tensor_in_frame", _ALL)
"""Whether a frame without compiled code that fits is an error under the stance "fail_on_recompile"."""
counters: Any = probe("torch._dynamo.utils:counters", _ALL)
"""How many graphs the process has compiled, among other figures."""
compiled_code: Any = probe("torch._dynamo.eval_frame:_debug_get_cache_entry_list", _ALL)
is_skipped: Any = probe("torch._dynamo.trace_rules:check", _ALL)
in_a_frame: Any = probe("torch._dynamo.external_utils:wrap_inline", _ALL)
"""Gives a function that Dynamo skips, such as the forward of a module of torch, a frame that it does not."""
skip_package: Any = probe("torch._dynamo.trace_rules:add", _ALL)
innermost_backend: Any = probe("torch._dynamo.eval_frame:innermost_backend", _ALL)
without_function_mode: Any = probe("torch.overrides:_pop_mode_temporarily", _ALL)
innermost_mode: Any = probe("torch.utils._python_dispatch:_get_current_dispatch_mode", _ALL)
FakeTensorMode: Any = probe("torch._subclasses.fake_tensor:FakeTensorMode", _ALL)

# Configurations.
functorch_config: Any = probe("torch._functorch:config", _ALL)
inductor_config: Any = probe("torch._inductor:config", _ALL)

# A GPU and Triton.
AVOIDS_DEVICE: Place = place("torch._subclasses.fake_tensor:FakeTensorMode.avoid_device_init", _CUDA)
DEVICE: Place = place("torch._dynamo.device_interface:CudaInterface", _CUDA)
INITIALISE: Place = place("torch.cuda:_lazy_init", _CUDA)
DEVICE_GUARD: Place = place("torch.cuda:_DeviceGuard", _CUDA)
HAS_TRITON = tuple(place(f"torch._inductor.{part}:has_triton", _CUDA) for part in ("scheduler", "fx_passes.pad_mm"))
TRITON_HASH: Place = place("torch.utils._triton:triton_hash_with_backend", _CUDA)
has_triton_package: Any = probe("torch.utils._triton:has_triton_package", _CUDA)
ATTRIBUTES_VERSION: Place = place("torch._inductor.utils:get_triton_attrs_descriptor_version", _CUDA)
PATTERNS = tuple(place(f"torch._inductor.fx_passes.{part}:lazy_init", _CUDA) for part in ("joint_graph", "post_grad"))
CONSTANTS: Place = place("torch.fx.experimental.proxy_tensor:CONSTANT_NUMEL_LIMIT", _CUDA)
"""The most elements of a tensor whose values are followed while a graph is made, for ``item``."""
FOLD: Place = place("torch._inductor.fx_passes.joint_graph:UniformValueConstantFolder._deduce_value", _CUDA)
SHOULD_PAD: Place = place("torch._inductor.fx_passes.pad_mm:_should_pad", _CUDA)
CONV_BACKEND: Place = place("torch:_C._select_conv_backend", _CUDA)
CONV_LAYOUT: Place = place("torch:_C._conv_determine_backend_memory_format", _CUDA)
HEURISTICS = "torch._inductor.runtime.triton_heuristics"
COMPOSITE: Any = probe("torch:_C.DispatchKey.CompositeImplicitAutograd", _CUDA)


def wrap(where: Place, replacement: Callable[..., Any]) -> None:
    """Have ``replacement`` called in place of a function of torch, with that function as its first argument."""
    own = where.value
    where.set(wraps(own)(lambda *args, **kwargs: replacement(own, *args, **kwargs)))


def answer_for_c() -> None:
    """Define functions of ``torch._C`` that a CPU build lacks and generated code calls: the stream and the device."""
    for name in ("_cuda_getCurrentRawStream", "_cuda_getDevice"):
        setattr(torch._C, name, lambda *_: 0)
