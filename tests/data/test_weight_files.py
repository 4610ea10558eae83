"""Headers of weight files: contents are read back exactly; hostile headers are rejected at no cost."""

import json
import os
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from torchsummary_plus import InputError, WeightsFile, from_config, weights
from torchsummary_plus.api.cli import main
from torchsummary_plus.data.weight_files import BLOCKS, MOST_HEADER_BYTES

STATE = {"a.weight": torch.zeros(4, 3), "a.bias": torch.zeros(4), "b.weight": torch.zeros(2, 4, dtype=torch.bfloat16)}

ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def stored(path: Path, header: object, data: int = 0, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(data))
    return path


def test_they_are_what_safetensors_wrote(tmp_path: Path) -> None:
    safetensors: Any = pytest.importorskip("safetensors.torch")
    safetensors.save_file(STATE, path := tmp_path / "model.safetensors", {"format": "pt"})
    result = weights(path)
    assert {entry.name: entry.shape for entry in result.tensors} == {name: tuple(t.shape) for name, t in STATE.items()}
    assert result.total_params == sum(t.numel() for t in STATE.values())
    assert result.total_bytes == sum(t.numel() * t.element_size() for t in STATE.values())
    assert WeightsFile.from_json(result.to_json()) == result
    assert result.to_dataframe(depth=1)["num_params"].tolist() == [16, 8]


def test_an_index_reads_its_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    safetensors: Any = pytest.importorskip("safetensors.torch")
    places = {"a.weight": "1.safetensors", "a.bias": "1.safetensors", "b.weight": "2.safetensors"}
    for shard in set(places.values()):
        safetensors.save_file({name: STATE[name] for name in places if places[name] == shard}, tmp_path / shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert weights(index).total_params == 24
    assert main([str(index), "--depth", "1"]) == 0
    assert "Total params: 24" in capsys.readouterr().out
    for outside in ("../1.safetensors", "/etc/passwd", "1.bin", "\0.safetensors", "\ud800.safetensors", "x" * 300):
        index.write_text(json.dumps({"weight_map": {"a": outside}}))
        with pytest.raises(InputError, match=r"is not a \.safetensors file in its folder"):
            weights(index)


def test_an_index_and_its_shards_agree(tmp_path: Path) -> None:
    stored(tmp_path / "1.safetensors", {"a": ONE, "b": {**ONE, "data_offsets": [8, 16]}}, 16)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors"}}))
    assert weights(index).total_params == 4  # Those of the files, listed or not.
    index.write_text(json.dumps({"weight_map": dict.fromkeys("abcd", "1.safetensors")}))
    with pytest.raises(InputError, match="its shards do not have 'c' and 1 more"):
        weights(index)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs")
@pytest.mark.parametrize("name", ["m.safetensors", "m.gguf", "m.onnx", "m.safetensors.index.json", "config.json"])
def test_only_regular_files_are_read(tmp_path: Path, name: str) -> None:
    if name.endswith(".onnx"):
        pytest.importorskip("onnx")

    def read(path: Path) -> object:
        return from_config(path) if name == "config.json" else weights(path)

    os.mkfifo(fifo := tmp_path / name)
    zero = tmp_path / "of_zeros" / name
    zero.parent.mkdir()
    zero.symlink_to("/dev/zero")
    for path in (fifo, zero):
        with pytest.raises(InputError, match="it is not a regular file"):
            read(path)
    for odd in ("a\0", "a\ud800"):
        with pytest.raises(InputError, match="cannot be read"):
            read(tmp_path / odd / name)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"{", "Expecting"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "recursion|overflow|Expecting|nested"),
        ({"w": {**ONE, "shape": [3]}}, "do not match its shape"),
        ({"w": {**ONE, "data_offsets": [0, 1 << 40], "shape": [1 << 38]}}, "outside the file"),
        ({"w": {**ONE, "data_offsets": [8, 0]}}, "do not match its shape"),
        ({"w": {**ONE, "shape": [-2]}}, "has an invalid shape or invalid offsets"),
        ({"w": {**ONE, "shape": [True, 2]}}, "has an invalid shape or invalid offsets"),
        ({"w": {**ONE, "shape": [1] * 10_000 + [2]}}, "has an invalid shape or invalid offsets"),
        ({"w": {**ONE, "dtype": "F7"}}, "unknown dtype"),
        ({"w": {"dtype": "F32"}}, "does not have exactly"),
        (b'{"w": {"dtype": "F32"}, "w": {"dtype": "F32"}}', "has the key 'w' more than once"),
        (b'{"\xff": 1}', "can't decode"),
    ],
)
def test_hostile_headers_are_refused(tmp_path: Path, header: object, why: str) -> None:
    with pytest.raises(InputError, match=why):
        weights(stored(tmp_path / "model.safetensors", header, 8))


@pytest.mark.parametrize("length", [10, MOST_HEADER_BYTES + 1, (1 << 64) - 1])
def test_an_announced_length_is_not_believed(tmp_path: Path, length: int) -> None:
    with pytest.raises(InputError, match=r"it declares [0-9,]+ bytes"):
        weights(stored(tmp_path / "model.safetensors", b"{}", 0, length))


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(
    tensors: list[tuple[str, tuple[int, ...], int]], entries: bytes = b"", count: int = 0, data: int = 4096
) -> bytes:
    body, offset = b"", 0
    for name, shape, kind in tensors:
        body += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, offset)
        _, elements, nbytes = BLOCKS.get(kind, ("", 1, 1))
        offset += -(-prod(shape) // elements * nbytes // 32) * 32
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + entries + body + bytes(data)


def test_a_gguf_header_is_read(tmp_path: Path) -> None:
    entries = text("general.name") + struct.pack("<I", 8) + text("tiny")
    entries += text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    entries += text("scores") + struct.pack("<IIQ2f", 9, 6, 2, 0.0, 1.0)
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([("w", (4, 64), 2), ("b", (64,), 0)], entries, 3))
    result = weights(path)
    assert [(tensor.name, tensor.shape, tensor.dtype, tensor.nbytes) for tensor in result.tensors] == [
        ("w", (4, 64), "Q4_0", 4 * 2 * 18), ("b", (64,), "F32", 256),
    ]  # fmt: skip
    assert result.total_params == 320


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GGML" + bytes(64), "does not begin"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "its version is 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "ends inside the header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60), "the header has more than"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 60),
            "the header has more than",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1),
            "array of the unknown type 9",
        ),
        (gguf([("w", (1 << 40, 64), 0)]), "outside the file"),
        (gguf([("w", (3,), 2)]), "whole blocks of 32"),
        (gguf([("w", (32,), 0), ("w", (32,), 0)]), "two tensors of one name"),
        (gguf([("w", (2048,), 0)]), "lie outside the file"),
        (gguf([("w", (3,), 999)]), "unknown type 999"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0), "ends inside the header"),
    ],
)
def test_hostile_gguf_headers_are_refused(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(InputError, match=why):
        weights(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"accepted: '\.safetensors', '\.gguf', '\.index\.json'"):
        weights(tmp_path / "model.h5")
    with pytest.raises(InputError, match=r"model\.bin is a pickle.*torch\.load"):
        weights(tmp_path / "model.bin")
    with pytest.raises(InputError, match="cannot be read"):
        weights(tmp_path / "none.gguf")
