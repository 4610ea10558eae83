"""`weights`: list the contents of a weight file, without a model and without reading the weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ..data.arguments import names_cures
from ..data.errors import InputError, choice_error
from ..data.onnx_files import read_onnx
from ..data.weight_files import PICKLED, WeightEntry, files_of, has_weights, read_weights
from ..formats.table import Field, Table, TableRow, Total, cells
from ..results.views import Chosen, Views

SUFFIXES = (".safetensors", ".gguf", ".index.json", ".onnx")

FIELDS = (
    Field("shape", "Shape"), Field("dtype", "Dtype"), Field("num_params", "Param #", "elements", adds_up=True),
    Field("nbytes", "Bytes", "bytes", adds_up=True),
)  # fmt: skip
TOTALS = (Field("total_params", "Total params", "elements"), Field("total_bytes", "Stored", "bytes", scaled=True))


@dataclass(frozen=True, repr=False)
class WeightsFile(Views):
    """The result of :func:`weights`: the tensors of a file as immutable data.

    With a ``depth``, tensors whose names begin with the same parts are summed.

    >>> WeightsFile("tiny", (WeightEntry("scale", (3,), "F32", 12, "tiny.safetensors"),)).total_params
    3
    """

    name: str
    tensors: tuple[WeightEntry, ...]

    @property
    def total_params(self) -> int:
        """Parameters of the model: packed weights count unpacked, and scales, shapes and indices do not count."""
        return sum(entry.num_params for entry in self.tensors)

    @property
    def total_bytes(self) -> int:
        """Stored bytes of all tensors."""
        return sum(entry.nbytes for entry in self.tensors)

    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        groups: dict[str, list[WeightEntry]] = {}
        depth = look.get("depth")
        deepest = None if depth is None else max(1, depth)
        for entry in self.tensors:
            path = ".".join(entry.name.split(".")[:deepest])
            groups.setdefault(path, []).append(entry)
        rows = []
        for path, entries in groups.items():
            shape = str(list(entries[0].shape)) if len(entries) == 1 else f"{len(entries):,} tensors"
            dtypes = ", ".join(name for name, _ in Counter(entry.dtype for entry in entries).most_common())
            sums = sum(entry.num_params for entry in entries), sum(entry.nbytes for entry in entries)
            rows.append(TableRow(path, path, 0, cells(FIELDS, (shape, dtypes, *sums))))
        totals = map(Total, TOTALS, cells(TOTALS, (self.total_params, self.total_bytes)))
        return (Table(self.name, "Tensor", FIELDS, tuple(rows), tuple(totals)),)


def is_weights(path: str | Path) -> bool:
    """Return whether a path is of a kind that :func:`weights` reads: a file's name, or a folder that has such files."""
    return str(path).endswith(SUFFIXES) or has_weights(Path(path))


@names_cures({})
def weights(path: str | Path) -> WeightsFile:
    """Return names, shapes, dtypes, bytes and parameters of the weights in a file or folder, from the headers alone.

    ``path`` is a ``.safetensors`` or ``.gguf`` file, the ``.index.json`` of ``.safetensors`` shards, an ``.onnx`` file
    (the extra ``onnx``; data beside it is not read), or a folder with these of one model. Packed weights (GPTQ, AWQ,
    compressed-tensors, bitsandbytes, MLX, MXFP4, FP8 and others) count the parameters that they stand for, and their
    scales none; where the tensors leave it open, a ``config.json`` beside them tells the number of bits.

    Raises :class:`InputError` for another kind of file, for a folder with several models or none, for a header that is
    malformed, contradicts the file's size, or declares more than 100,000,000 bytes, and for an ``.onnx`` file of more
    than 2 GiB.

    >>> import json, pathlib, tempfile
    >>> header = json.dumps({"scale": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}).encode()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "tiny.safetensors")
    ...     _ = path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    ...     weights(path).tensors[0].shape
    (3,)
    """
    place = Path(path)
    files = files_of(place) if place.is_dir() else (place,)
    if str(path).endswith(PICKLED) and not place.is_dir():
        raise InputError(f"{path} is a pickle, which has no header; load it: torch.load(path, weights_only=True)")
    if not is_weights(path):
        raise choice_error("the suffix of the file", "".join(place.suffixes[-2:]), SUFFIXES)
    read = read_onnx if files[0].suffix == ".onnx" else read_weights
    return WeightsFile(place.resolve().name if place.is_dir() else place.name, read(*files))
