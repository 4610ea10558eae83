"""Names, shapes and bytes of weights from the headers of .safetensors and .gguf files; the weights are not read.

A folder's files are those of one model. Packed tensors count the parameters that they stand for, by the layouts that
these write: AutoGPTQ and GPTQModel, AutoAWQ, compressed-tensors, bitsandbytes, MLX, modelopt, transformers (MXFP4 of
gpt-oss, fine-grained FP8, BitNet, HQQ), AQLM, and exllamav2 and 3. Sources: the safetensors format
(github.com/huggingface/safetensors, README and ``MAX_HEADER_SIZE`` of safetensors/src/tensor.rs) and GGUF
(github.com/ggml-org/ggml, docs/gguf.md; block sizes from ``ggml-common.h``).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from .errors import InputError, warn
from .units import describe, one_line
from .untrusted_files import MOST_BYTES, content, opened, parsed_object, quantisation

MOST_HEADER_BYTES = 100_000_000  # Maximum length of a header: safetensors' own limit.
MOST_AXES = 64

SHARD = re.compile(r"[^/\\:\0\ud800-\udfff]{,200}\.safetensors")
"""The name of a shard: that of a file in the index's folder, in characters that names of files can have."""

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
    "U64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits of an element of each safetensors dtype."""

INTEGERS = {"U8": "B", "I8": "b", "I16": "h", "U16": "H", "I32": "i", "U32": "I", "I64": "q", "U64": "Q"}
"""The struct code of each integer dtype."""

BLOCKS = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
"""GGUF's types of tensors: name, elements of a block, bytes of a block."""

_PLAIN = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # Bytes of GGUF's types of numbers.
_STRING, _ARRAY = 8, 9


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


def read_weights(*paths: Path) -> tuple[WeightEntry, ...]:
    """Return the tensors of .safetensors files, .gguf files, or an index of .safetensors shards, all in one folder.

    Raises :class:`InputError` for a header that is malformed, contradicts the file's size, or exceeds the limits, for
    files that have a tensor in common, and for an index with tensors that its shards do not have.
    """
    folder, stored = paths[0].parent, dict[str, Stored]()
    index = _index(paths[0]) if paths[0].name.endswith(".index.json") else {}
    for path in [folder / shard for shard in sorted(set(index.values()))] or paths:
        found = _stored_in(path)
        if twice := stored.keys() & found.keys():
            raise _refused(path.name, f"another file has {_first_of(sorted(twice))} too")
        stored |= found
    if missing := [name for name in index if name not in stored]:
        raise _refused(paths[0].name, f"its shards do not have {_first_of(missing)}")
    tensors = {name: entry for name, (entry, _) in stored.items()}
    return with_parameters(Checkpoint(tensors, {name: values for name, (_, values) in stored.items()}, folder))


Stored = tuple[WeightEntry, tuple[int, ...]]  # A tensor, and the integers in it if they are a shape or bits.


def _index(path: Path) -> dict[str, str]:
    """Return the names of the tensors in an index, and the files in its folder that have them."""
    data = content(path, MOST_HEADER_BYTES)
    try:
        shards = parsed_object(data).get("weight_map")
    except ValueError as error:
        raise _refused(path.name, str(error)) from None
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise _refused(path.name, "it has no weight_map from names to files")
    if wrong := [shard for shard in shards.values() if not SHARD.fullmatch(shard)]:
        raise _refused(path.name, f"{describe(wrong[0])} is not a .safetensors file in its folder")
    return shards


def _stored_in(path: Path) -> dict[str, Stored]:
    """Return the tensors of a file as they are stored."""
    read = _gguf if path.suffix == ".gguf" else _safetensors
    with opened(path) as file:
        try:
            stored = read(file, os.fstat(file.fileno()).st_size, path.name)
            return {entry.name: (entry, integers) for entry, integers in stored}
        except (struct.error, ValueError) as error:  # A header that ends early, or text that is not UTF-8 or JSON.
            raise _refused(path.name, str(error)) from None


def _refused(name: str, why: str) -> InputError:
    return InputError(f"{one_line(name)} has no valid header: {why}")


def _first_of(names: Collection[str]) -> str:
    """Return the first of some tensors, and how many more there are."""
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return f"{describe(next(iter(names)))}{more}"


def _safetensors(file: BinaryIO, size: int, name: str) -> Iterator[Stored]:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > MOST_HEADER_BYTES or length > size - 8:
        raise ValueError(f"it declares {length:,} bytes; the limits are {MOST_HEADER_BYTES:,} and the file's size")
    header = parsed_object(file.read(length))
    header.pop("__metadata__", None)
    for tensor, entry in header.items():
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{describe(tensor)} does not have exactly dtype, shape and data_offsets")
        dtype, shape, offsets = str(entry["dtype"]), entry["shape"], entry["data_offsets"]
        if dtype not in BITS:
            raise ValueError(f"{describe(tensor)} has the unknown dtype {describe(entry['dtype'])}")
        if not _are_sizes(shape) or len(shape) > MOST_AXES or not _are_sizes(offsets) or len(offsets) != 2:
            raise ValueError(f"{describe(tensor)} has an invalid shape or invalid offsets")
        begin, end = offsets
        count, nbytes = prod(shape), end - begin
        if not 0 <= nbytes <= size - 8 - length - begin or 8 * nbytes != count * BITS[dtype]:
            raise ValueError(f"the bytes of {describe(tensor)} do not match its shape, or lie outside the file")
        integers: tuple[int, ...] = ()
        if dtype in INTEGERS and count <= MOST_AXES and SHAPES.search(tensor):
            file.seek(8 + length + begin)
            integers = struct.unpack(f"<{count}{INTEGERS[dtype]}", file.read(nbytes))
        yield WeightEntry(tensor, tuple(shape), dtype, nbytes, name), integers


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _gguf(file: BinaryIO, size: int, name: str) -> Iterator[Stored]:
    def read(count: int) -> bytes:
        if file.tell() + count > MOST_HEADER_BYTES:
            raise ValueError(f"the header has more than {MOST_HEADER_BYTES:,} bytes")
        data = file.read(count)
        if len(data) != count:
            raise ValueError("the file ends inside the header")
        return data

    def unpack(form: str) -> tuple[int, ...]:
        return struct.unpack(f"<{form}", read(struct.calcsize(f"<{form}")))

    def string() -> bytes:
        return read(*unpack("Q"))

    def skip(kind: int) -> None:
        """Skip a value of the metadata."""
        count = 1
        if kind == _ARRAY:
            kind, count = unpack("IQ")
        if kind in _PLAIN:
            read(count * _PLAIN[kind])
        elif kind != _STRING:
            raise ValueError(f"it has a value or array of the unknown type {kind}")
        for _ in range(count if kind == _STRING else 0):
            string()

    if read(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version, tensors, entries = unpack("IQQ")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}; accepted: 2, 3")
    for _ in range(entries):
        string()
        skip(*unpack("I"))
    names, end = set[str](), 0  # The end of the last tensor, in bytes from that of the header.
    for _ in range(tensors):
        tensor, (axes,) = string().decode(), unpack("I")
        if axes > MOST_AXES:
            raise ValueError(f"{describe(tensor)} has {axes:,} axes; the limit is {MOST_AXES}")
        shape = unpack(f"{axes}Q")[::-1]
        kind, offset = unpack("IQ")
        if kind not in BLOCKS:
            raise ValueError(f"{describe(tensor)} has the unknown type {kind}")
        dtype, elements, block = BLOCKS[kind]
        if (shape[-1] if shape else 1) % elements:
            raise ValueError(f"the shape of {describe(tensor)} does not consist of whole blocks of {elements}")
        if tensor in names:
            raise ValueError("it has two tensors of one name")
        names.add(tensor)
        nbytes = prod(shape) // elements * block
        end = max(end, offset + nbytes)
        yield WeightEntry(tensor, shape, dtype, nbytes, name), ()
    if file.tell() + end > size:
        raise ValueError("its tensors lie outside the file")


SUFFIXES = (".safetensors", ".gguf", ".onnx")
INDEX = ".safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")  # Suffixes of torch's own checkpoints.
SHARD_NAME = re.compile(r"(.*)-\d{5}-of-\d{5}\.\w+")  # A shard's name, its number and how many there are.


def has_weights(folder: Path) -> bool:
    """Return whether a path is a folder with files of weights."""
    return folder.is_dir() and any(name.endswith(SUFFIXES) for name in _names(folder))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise InputError(f"{one_line(str(folder))} cannot be read: {error.strerror or error}") from None


def files_of(folder: Path) -> tuple[Path, ...]:
    """Return a folder's one model: its index, its file or its shards. Raises :class:`InputError` if there are several.

    An index comes before files, safetensors before GGUF and ONNX, and a file named ``model`` before its variants.
    """
    names = _names(folder)
    for suffix in (INDEX, *SUFFIXES):
        found = [name for name in names if name.endswith(suffix)]
        if f"model{suffix}" in found:
            found = [f"model{suffix}"]
        first, count = SHARD_NAME.fullmatch(found[0]) if found else None, len(found)
        shards = [f"{first[1]}-{number:05}-of-{count:05}{suffix}" for number in range(1, count + 1)] if first else []
        if count > 1 and (suffix == ".onnx" or found != shards):
            listed = ", ".join(map(describe, found[:10]))
            raise InputError(f"{one_line(str(folder))} has weights of several models; pass one of {listed}")
        if found:
            return tuple(folder / name for name in found)
    inner = [name for name in names if has_weights(folder / name)]
    cure = f"; its folders {', '.join(map(describe, inner[:10]))} have some" if inner else ""
    if any(name.endswith(PICKLED) for name in names):
        cure = "; a pickle has no header: load it with torch.load(path, weights_only=True)"
    raise InputError(f"{one_line(str(folder))} has no {', '.join(SUFFIXES)} files{cure}")


# The parameters that packed tensors stand for.

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
    """The tensors of a checkpoint by name, the integers of its small ones, and the folder that it is in."""

    tensors: Mapping[str, WeightEntry]
    integers: Mapping[str, Sequence[int]]
    folder: Path

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The quantisation in the ``config.json`` beside the files, which is read where the tensors leave it open."""
        config = self.folder / "config.json"
        try:
            return quantisation(parsed_object(content(config, MOST_BYTES)))[1] if config.exists() else {}
        except ValueError as error:
            warn(f"{config.name} is left out, though packed weights may need it: {error}")
            return {}

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
