"""`weights`: list the contents of a weight file, without a model and without reading the weights."""

from __future__ import annotations

from pathlib import Path

from ..data.arguments import names_cures
from ..data.errors import InputError, choice_error
from ..data.onnx_files import read_onnx
from ..data.weight_files import PICKLED, files_of, has_weights, read_weights
from ..results.weights_file import WeightsFile

SUFFIXES = (".safetensors", ".gguf", ".index.json", ".onnx")


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
