"""Tensors in files of weights, and the parameters that packed ones stand for, by the layouts of quantisation libraries.

Sources: the layouts that these write: AutoGPTQ and GPTQModel, AutoAWQ, compressed-tensors, bitsandbytes, MLX, modelopt,
transformers (MXFP4 of gpt-oss, fine-grained FP8, BitNet, HQQ), AQLM, and exllamav2 and 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """A tensor in a file: its name, shape, dtype as the format calls it, and stored bytes.

    ``params`` counts the parameters of the model that it stores: the elements of a packed weight, 0 for its scales and
    for shapes; None if they are its own elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: str
    params: int | None = None

    @property
    def num_params(self) -> int:
        """The number of the model's parameters that it stores."""
        return self.numel if self.params is None else self.params

    @property
    def numel(self) -> int:
        """The number of elements, even if they are stored in blocks."""
        return prod(self.shape)


DESCRIPTION = re.compile(
    r"_scale_inv$|weight_(scale(_2|_inv)?|scales|global_scale|zero_point|shape|format|g_idx)$"
    r"|(^|\.)(SCB|qzeros|g_idx)$|\.(nested_)?(absmax|quant_map)$|\.quant_state\.bitsandbytes__\w+$"
    r"|\.weight\._(scale|shift|zeropoint)$"
)
"""Names of tensors that describe others wherever they occur."""

SCALAR = re.compile(r"(^|[._])(input|output|act|activation|k|v|q|prob)_(global_)?scale$")
"""Names of single numbers that do; models have learned vectors of these names."""

SMALL = ("F8_", "F6_", "F4", "I8", "U8")  # The beginnings of types that need scales.

SHAPES = re.compile(r"(^|\.)(weight_shape|W_q\.shape|shape|nbits)$")
"""Names of tensors whose few integers are a shape or a number of bits, which are read."""

MOST_PER_BYTE = 16  # More parameters per stored byte than any layout has: half a bit for each.


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint by name, the integers of its small ones, and the settings of its config."""

    tensors: Mapping[str, WeightEntry]
    integers: Mapping[str, Sequence[int]]
    settings: Mapping[str, Any]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; () if there is none."""
        entry = self.tensors.get(name)
        return () if entry is None else entry.shape

    def bits(self, base: str) -> int | None:
        """Return the bits of a weight by the config: its own, those of the first group, or those of all."""
        own = self.settings.get(base.removesuffix("."))
        groups = self.settings.get("config_groups")
        first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
        weights = first.get("weights") if isinstance(first, Mapping) else None
        for place, name in ((own, "bits"), (weights, "num_bits"), (self.settings, "bits"), (self.settings, "w_bit")):
            value = place.get(name) if isinstance(place, Mapping) else None
            if type(value) is int and 1 <= value <= 8:
                return value
        return None


def is_quantised(names: Mapping[str, WeightEntry]) -> bool:
    """Return whether any tensor is packed, or describes another."""
    return any(_describes(names, entry) or _packing(names, entry) is not None for entry in names.values())


def _describes(tensors: Mapping[str, WeightEntry], entry: WeightEntry) -> bool:
    """Return whether a tensor describes another, by its name or because that one is of a small type."""
    name = entry.name
    if DESCRIPTION.search(name) or (entry.numel <= 1 and SCALAR.search(name)):
        return True
    base, last = _parts(name)
    described = f"{base}weight" if last in ("scale", "scales") else name.removesuffix("_scale")
    return described != name and described in tensors and tensors[described].dtype.startswith(SMALL)


def with_parameters(checkpoint: Checkpoint) -> tuple[WeightEntry, ...]:
    """Return the tensors with the parameters that packed ones stand for; what describes them has none."""
    described = (name for name, entry in checkpoint.tensors.items() if _describes(checkpoint.tensors, entry))
    params = dict.fromkeys(described, 0)
    for name, entry in checkpoint.tensors.items():
        packed = None if name in params else _packing(checkpoint.tensors, entry)
        if packed is None:
            continue
        packing, companions = packed
        base, _ = _parts(name)
        count = packing(checkpoint, base, entry)
        if count is not None and 0 <= count <= MOST_PER_BYTE * entry.nbytes:
            params.update(dict.fromkeys((f"{base}{other}" for other in companions), 0) | {name: count})
    return tuple(
        replace(entry, params=params[name]) if name in params else entry for name, entry in checkpoint.tensors.items()
    )


Packing = Callable[[Checkpoint, str, WeightEntry], "int | None"]
"""(checkpoint, name of the layer with its dot, packed tensor) -> the parameters it stands for; None if unknown."""


def _parts(name: str) -> tuple[str, str]:
    """Split a name into that of its layer, with the dot, and the rest."""
    base, dot, last = name.rpartition(".")
    return base + dot, last


def _packing(tensors: Mapping[str, WeightEntry], entry: WeightEntry) -> tuple[Packing, Sequence[str]] | None:
    """Return how a tensor is packed, and the tensors beside it that describe it; None if it is not packed."""
    base, last = _parts(entry.name)
    for pattern, dtypes, needed, packing, companions in PACKINGS:
        name = re.fullmatch(pattern, last)
        if name and re.fullmatch(dtypes, entry.dtype) and (not needed or base + name.expand(needed) in tensors):
            return packing, name.expand(companions).split()
    return None


def _halves(checkpoint: Checkpoint, base: str, entry: WeightEntry) -> int:
    """Four bits each: MXFP4's blocks, and bitsandbytes' weights, whatever type they are stored as."""
    return 2 * entry.nbytes


def _in_bytes(checkpoint: Checkpoint, base: str, entry: WeightEntry) -> int | None:
    """Two values of four bits in a byte, with a scale for 16 or 32 of them; four of BitNet's ternary ones."""
    if checkpoint.settings.get("quant_method") == "bitnet":
        return 4 * entry.nbytes
    scales = checkpoint.shape(f"{base}weight_scale") or checkpoint.shape(f"{base}scale")
    same_axes = bool(entry.shape) and len(scales) == len(entry.shape)
    has_blocks = same_axes and entry.shape[-1] in (8 * scales[-1], 16 * scales[-1])
    return 2 * entry.nbytes if has_blocks or f"{base}weight_scale_2" in checkpoint.tensors else None


def _gptq_or_awq(checkpoint: Checkpoint, base: str, entry: WeightEntry) -> int | None:
    """GPTQ packs the inputs of a weight into 32-bit words, [inputs x bits / 32, outputs]; AWQ the outputs."""
    scales, zeros, order = (checkpoint.shape(f"{base}{name}") for name in ("scales", "qzeros", "g_idx"))
    if len(entry.shape) != 2:
        return None
    rows, columns = entry.shape
    if len(scales) == 2 and scales[1] > columns:
        return rows * scales[1]
    if len(order) == 1 and columns:
        return order[0] * columns
    if len(scales) == len(zeros) == 2 and scales[1] and 32 * zeros[1] % scales[1] == 0:
        return _unpacked(entry, 32 * zeros[1] // scales[1])
    by_group = _whole(32 * rows, 128 * scales[0]) if len(scales) == 2 else None
    return _unpacked(entry, checkpoint.bits(base) or by_group or 4)


def _compressed(checkpoint: Checkpoint, base: str, entry: WeightEntry) -> int | None:
    """compressed-tensors stores the shape of the weight beside it; values of four bits may be in bytes."""
    shape = checkpoint.integers.get(f"{base}weight_shape")
    if shape and min(shape) >= 0:
        return prod(shape)
    return 2 * entry.nbytes if entry.dtype == "U8" else _unpacked(entry, checkpoint.bits(base) or 4)


def _mlx(checkpoint: Checkpoint, base: str, entry: WeightEntry) -> int | None:
    """MLX packs the inputs, [outputs, inputs x bits / 32], with a scale for a group of 64 unless the config says."""
    scales = checkpoint.tensors[f"{base}scales"]
    by_group = None
    if entry.shape and scales.shape and scales.dtype != "U8":  # Scales of a byte are those of MXFP4.
        by_group = _whole(32 * entry.shape[-1], 64 * scales.shape[-1])
    return _unpacked(entry, checkpoint.bits(base) or by_group or 4)


def _exl2(checkpoint: Checkpoint, base: str, entry: WeightEntry) -> int | None:
    """exllamav2 packs each row of a weight in a number of bits of its own; the order of the rows is stored."""
    rows = checkpoint.shape(f"{base}q_invperm") or checkpoint.shape(f"{base}q_perm")
    return rows[0] * entry.shape[-1] if len(rows) == 1 and entry.shape else None


def _exl3(checkpoint: Checkpoint, base: str, entry: WeightEntry) -> int | None:
    """exllamav3 codes tiles of 16 x 16."""
    return 256 * prod(entry.shape[:2]) if len(entry.shape) == 3 else None


def _aqlm(checkpoint: Checkpoint, base: str, entry: WeightEntry) -> int | None:
    """AQLM has a code for each group of weights, [groups of outputs, groups of inputs, codebooks]."""
    books = checkpoint.shape(f"{base}codebooks")
    return prod(entry.shape[:2]) * prod(books[2:]) if len(entry.shape) == 3 and len(books) == 4 else None


def _hqq(checkpoint: Checkpoint, base: str, entry: WeightEntry) -> int | None:
    """HQQ stores the shape of the weight and its bits beside it."""
    shape, bits = checkpoint.integers.get(f"{base}shape"), checkpoint.integers.get(f"{base}nbits")
    if shape and min(shape) >= 0:
        return prod(shape)
    return 8 * entry.nbytes // bits[0] if bits and bits[0] > 0 else None


PACKINGS: tuple[tuple[str, str, str, Packing, str], ...] = (
    ("qweight", ".*", "", _gptq_or_awq, "scales"),
    ("weight_packed", ".*", "", _compressed, ""),
    ("q_weight", ".*", "q_scale", _exl2, "q_scale q_scale_max q_groups q_group_map q_perm q_invperm"),
    ("trellis", ".*", "suh", _exl3, "suh svh su sv mcg mul1"),
    ("codes", ".*", "codebooks", _aqlm, "codebooks scales"),
    ("W_q", ".*", "", _hqq, "scale zero shape nbits group_size axis channel_wise packing unpack_view_dtype"),
    ("(.*)_blocks", "U8", r"\1_scales", _halves, r"\1_scales"),
    ("weight", ".*", "weight.absmax", _halves, ""),
    ("weight", "U32", "scales", _mlx, "scales biases"),
    ("weight", "[UI]8", "weight_scale", _in_bytes, ""),
    ("weight", "[UI]8", "scale", _in_bytes, ""),
)
"""The last part of the name, the dtype, the tensor beside it that must be there, the packing, those that describe it.

:data:`DESCRIPTION` knows further ones by their names.
"""


def _unpacked(entry: WeightEntry, bits: int) -> int | None:
    return 8 * entry.nbytes // bits if bits else None


def _whole(bits: int, values: int) -> int | None:
    """Return the bits for each value if it is a number that weights are packed in."""
    return bits // values if values and bits % values == 0 and bits // values in (1, 2, 3, 4, 5, 6, 8) else None
