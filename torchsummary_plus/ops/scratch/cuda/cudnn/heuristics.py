"""Describe a convolution to cuDNN as torch does, and list the plans of its heuristics for a GPU.

Source: ``build_opgraph``, ``getTensorDescriptor``, ``getConvDescriptor`` in aten/src/ATen/native/cudnn/Conv_v8.cpp, and
NVIDIA's cudnn-frontend (``cudnn_frontend_Operation.h``, ``..._EngineFallbackList.h``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any

from ....strides import channels_last, contiguous
from .backend import CudnnError, Descriptor, Kind, Type

INSTANT, MODE_B, FALLBACK = 0, 1, 2
"""Heuristics modes (``cudnnBackendHeurMode_t``)."""

TENSOR_CORE, DOWN_CONVERT, NONDETERMINISTIC, NOTES = 0, 1, 4, 10
"""Numerical notes of an engine that torch checks, and their number (``cudnnBackendNumericalNote_t``)."""

DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
"""``cudnnDataType_t`` by torch dtype."""

CROSS_CORRELATION = 1
ALIGNMENT = 32
"""The alignment torch reports for its allocator's tensors, which start at multiples of 512 bytes (``getAlignment``)."""

COMPUTE_TYPE, MODE, DILATIONS, STRIDES, POST_PADDINGS, PRE_PADDINGS, SPATIAL_DIMS = range(100, 107)
HEURISTICS_MODE, HEURISTICS_GRAPH, HEURISTICS_RESULTS, HEURISTICS_DEVICE = 200, 201, 202, 204
CONFIG_ENGINE = 300
PLAN_CONFIG, PLAN_WORKSPACE, PLAN_DEVICE = 401, 402, 407
OPERATIONS = {Kind.FORWARD: 700, Kind.BACKWARD_DATA: 706, Kind.BACKWARD_FILTER: 712}
"""First attribute of each operation: alpha, beta, the convolution, then w, x and y or their gradients."""
GRAPH_OPERATIONS = 801
BYTE_ALIGNMENT, DATA_TYPE, DIMENSIONS, TENSOR_STRIDES, UNIQUE_ID = 900, 901, 902, 903, 906
ENGINE_NOTES = 1303
DEVICE_JSON = 2702


@dataclass(frozen=True, slots=True)
class Question:
    """A convolution to query: the forward reads x and writes y; w are the weights.

    All three are dense in one memory format: channels-last (``last``) or channels-first.
    """

    kind: Kind
    dtype: str
    last: bool
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]


def words_of(question: Question) -> list[Any]:
    """Return a question in the form that JSON can hold."""
    return list(astuple(question))


def question_of(words: list[Any]) -> Question:
    """Return the question that :func:`words_of` encoded."""
    kind, dtype, last, *sizes = words
    return Question(Kind(kind), dtype, last, *map(tuple, sizes))


def workspaces(
    question: Question, device_text: str, mode: int, refused: frozenset[int], every: bool = False
) -> Iterator[int]:
    """Yield the workspaces, in bytes, of the heuristics' plans that can be built, in order.

    ``device_text`` holds the GPU's properties as JSON. Engines with a ``refused`` numerical note are skipped. Each plan
    is built on demand; the first that needs no workspace is the last, unless ``every`` plan is wanted. Raises
    :class:`CudnnError` if the heuristics have no answer.
    """
    with ExitStack() as stack:
        device = device_descriptor(device_text)
        heuristics = _descriptor(stack, Kind.HEURISTICS)
        heuristics.set_descriptors(HEURISTICS_GRAPH, _graph(stack, question))
        heuristics.set_numbers(HEURISTICS_MODE, Type.HEURISTIC_MODE, mode)
        heuristics.set_descriptors(HEURISTICS_DEVICE, device).finalize()
        configs = heuristics.descriptors(HEURISTICS_RESULTS, Kind.ENGINE_CONFIG)
        for config in configs:
            stack.callback(config.close)
        for config in configs:
            if not refused & _notes(config):
                size = _plan_bytes(config, device)
                if size is not None:
                    yield size
                if size == 0 and not every:
                    return


def _notes(config: Descriptor) -> frozenset[int]:
    """Return an engine's numerical notes; none if cuDNN reports no engine, as in torch."""
    (engine,) = config.descriptors(CONFIG_ENGINE, Kind.ENGINE, 1)
    with engine:
        return engine.notes(ENGINE_NOTES, NOTES)


def _plan_bytes(config: Descriptor, device: Descriptor) -> int | None:
    """Return a plan's workspace, or None if it cannot be built, in which case torch tries the next."""
    with Descriptor(Kind.PLAN) as plan:
        try:
            plan.set_descriptors(PLAN_CONFIG, config).set_descriptors(PLAN_DEVICE, device).finalize()
            return plan.number(PLAN_WORKSPACE)
        except CudnnError:
            return None


def _graph(stack: ExitStack, question: Question) -> Descriptor:
    convolution = _descriptor(stack, Kind.CONVOLUTION)
    compute = question.dtype if question.dtype == "float64" else "float32"
    convolution.set_numbers(COMPUTE_TYPE, Type.DATA_TYPE, DATA_TYPES[compute])
    convolution.set_numbers(MODE, Type.CONVOLUTION_MODE, CROSS_CORRELATION)
    convolution.set_numbers(SPATIAL_DIMS, Type.INT64, len(question.stride))
    for attribute in (PRE_PADDINGS, POST_PADDINGS):
        convolution.set_numbers(attribute, Type.INT64, *question.padding)
    convolution.set_numbers(DILATIONS, Type.INT64, *question.dilation)
    convolution.set_numbers(STRIDES, Type.INT64, *question.stride).finalize()
    operation, first = _descriptor(stack, question.kind), OPERATIONS[question.kind]
    scale = Type.DOUBLE if compute == "float64" else Type.FLOAT
    operation.set_numbers(first, scale, 1.0).set_numbers(first + 1, scale, 0.0)
    operation.set_descriptors(first + 2, convolution)
    for attribute, name, sizes in zip(range(first + 3, first + 6), "wxy", (question.w, question.x, question.y)):
        operation.set_descriptors(attribute, _tensor(stack, name, sizes, question))
    graph = _descriptor(stack, Kind.GRAPH)
    return graph.set_descriptors(GRAPH_OPERATIONS, operation.finalize()).finalize()


def _tensor(stack: ExitStack, name: str, sizes: tuple[int, ...], question: Question) -> Descriptor:
    tensor = _descriptor(stack, Kind.TENSOR)
    tensor.set_numbers(DATA_TYPE, Type.DATA_TYPE, DATA_TYPES[question.dtype])
    tensor.set_numbers(DIMENSIONS, Type.INT64, *sizes)
    tensor.set_numbers(TENSOR_STRIDES, Type.INT64, *(channels_last if question.last else contiguous)(sizes))
    tensor.set_numbers(UNIQUE_ID, Type.INT64, ord(name))
    return tensor.set_numbers(BYTE_ALIGNMENT, Type.INT64, ALIGNMENT).finalize()


def _descriptor(stack: ExitStack, kind: Kind) -> Descriptor:
    return stack.enter_context(Descriptor(kind))


@cache
def device_descriptor(text: str) -> Descriptor:
    """Return a cached descriptor that replaces a device handle.

    Raises :class:`CudnnError`, also for a second GPU: some heuristics keep the properties of a process's first one.
    """
    if device_descriptor.cache_info().currsize:
        raise CudnnError("this process has queried cuDNN for another GPU, whose properties it keeps")
    descriptor = Descriptor(Kind.DEVICE)
    descriptor.set_text(DEVICE_JSON, text)
    return descriptor.finalize()
