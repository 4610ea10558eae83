"""Files from others: mutants of small valid files end in a SummaryError or an answer, in bounded memory and time.

Each mutant is determined by its format and number, and runs in a forked child that may take 10 s and 1 GB more than it
starts with. What it is read into is also shown: a result that cannot be printed is no answer.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from torchsummary_plus import MemoryEstimate, ModelSummary, SummaryError, explain, from_config, weights

MOST_SECONDS = 10
MOST_BYTES = 1 << 30

ODD = (
    None, True, False, 0, 1, -1, 2, 7, 255, 1 << 31, 10**9, 10**10, (1 << 63) - 1, 1 << 63, 10**30, 0.5, 1e308, -0.0,
    float("nan"), float("inf"), "", "x", "=1+1", "a" * 5_000, "\ud800", "\0", "\u202e", "\x1b[31m", "../x",
    "/etc/passwd", "org/name", "cuda", "float32", [], {}, [1], [[[[]]]], {"a": 1},
)  # fmt: skip
"""Values that replace others in a JSON text."""

Read = Callable[[Path], Any]
Mutate = Callable[[random.Random], Mapping[str, bytes]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="mutants of each format (default 10000)")
    parser.add_argument("formats", nargs="*", help="only these formats")
    options = parser.parse_args()
    every = []
    for name in options.formats or FORMATS:
        failed, answered = judged(name, options.count)
        print(
            f"{name}: {options.count:,} mutants, {answered:,} answered, {len(failed):,} failed",
            *failed[:20],
            sep="\n  ",
        )
        every += failed
    sys.exit(bool(every))


def judged(name: str, count: int) -> tuple[list[str], int]:
    """Return a format's failures, and the number of its answers."""
    mutate, read = FORMATS[name]
    mutate(random.Random(0))  # What all mutants share is made once, before the children are forked.
    failed: list[str] = []
    answered = done = 0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while done < count:
            for outcome in _of_a_child(name, mutate, read, range(done, count), Path(folder)):
                answered += outcome == "answer"
                failed += [f"{name} {done}: {outcome}"] if outcome not in ("answer", "refused") else []
                done += 1
    return failed, answered


def _of_a_child(name: str, mutate: Mutate, read: Read, numbers: range, folder: Path) -> Iterator[str]:
    """Yield each mutant's outcome, up to the first that the child dies of."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            _read_all(name, mutate, read, numbers, folder, writer)
        finally:
            os._exit(0)
    os.close(writer)
    done = 0
    with os.fdopen(reader) as lines:
        for line in lines:
            yield str(json.loads(line))
            done += 1
    _, status = os.waitpid(child, 0)
    if done < len(numbers):
        is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
        yield f"more than {MOST_SECONDS} s" if is_late else f"the process died: {status}"


def _read_all(name: str, mutate: Mutate, read: Read, numbers: range, folder: Path, writer: int) -> None:
    """Read mutants, and write a line with the outcome of each."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    _outcome(mutate, read, f"{name} {numbers.start}", folder)  # Once more below: imports are none of its memory.
    room = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # It ends the process, whatever code is running.
    for number in numbers:
        signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
        os.write(writer, f"{json.dumps(_outcome(mutate, read, f'{name} {number}', folder))}\n".encode())


def _outcome(mutate: Mutate, read: Read, seed: str, folder: Path) -> str:
    for file, data in mutate(random.Random(seed)).items():
        (folder / file).write_bytes(data)
    try:
        read(folder)
    except SummaryError as error:
        return "more than 1 GB" if "MemoryError" in str(error) else "refused"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "answer"


def mutated_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return data with some of its bytes changed, repeated, moved, added or cut off."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        at, to = sorted(draw.randrange(len(changed) + 1) for _ in range(2))
        some = slice(at, min(to, at + draw.choice((1, 2, 8, 64, 1 << 20))))
        way = draw.randrange(6)
        if way == 0:
            changed[some] = draw.randbytes(some.stop - some.start)
        elif way == 1:
            changed[some] = changed[some] * draw.choice((0, 2, 3, 200))
        elif way == 2:
            changed[at:at] = draw.choice((b"\0", b"\xff" * 8, b"{", b"[" * 50_000, b'"', b"\xed\xa0\x80", b"1e999"))
        elif way == 3 and changed:
            changed[at % len(changed)] ^= 1 << draw.randrange(8)
        elif way == 4:
            changed[some] = bytes(some.stop - some.start)
        else:
            del changed[to:]
    return bytes(changed)


def mutated_json(draw: random.Random, value: Any) -> bytes:
    """Return a JSON text with some of its values replaced, removed, moved, renamed or given twice."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        places = list(_places(value))
        if not places:
            break
        inside, key = draw.choice(places)
        way = draw.randrange(8)
        if way < 4:
            inside[key] = copy.deepcopy(draw.choice(ODD))  # Later changes are this mutant's own.
        elif way == 4:
            del inside[key]
        elif way == 5:
            other, name = draw.choice(places)
            inside[key] = json.loads(json.dumps(other[name])) if name in _keys(other) else None
        elif way == 6 and isinstance(inside, dict):
            inside[draw.choice(("x", "\ud800", "", "__proto__", f"{key}x"))] = inside.pop(key)
        elif isinstance(inside, list):
            inside.insert(key, inside[key])
        elif isinstance(inside[key], int):
            inside[key] += draw.choice((-1, 1, 10, 1_000, 1_000_000))
    text = json.dumps(value)
    return mutated_bytes(draw, text.encode()) if draw.random() < 0.15 else text.encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every object and array with each of its keys."""
    for key in _keys(value):
        yield value, key
        yield from _places(value[key])


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []


TENSORS = {"a.weight": ("F32", [4, 3]), "a.bias": ("BF16", [4]), "b.scale": ("I64", []), "b.empty": ("F16", [0, 7])}
SIZES = {"F32": 4, "BF16": 2, "I64": 8, "F16": 2}


def _header() -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file, and the bytes of its tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in TENSORS.items():
        begin, end = end, end + prod(shape) * SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return header, end


def _safetensors(header: bytes, nbytes: int) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(nbytes)


def _mutated_safetensors(draw: random.Random) -> Mapping[str, bytes]:
    header, nbytes = _header()
    if draw.random() < 0.5:
        return {"m.safetensors": mutated_bytes(draw, _safetensors(json.dumps(header).encode(), nbytes))}
    return {"m.safetensors": _safetensors(mutated_json(draw, header), nbytes + draw.choice((0, 0, 0, 1, 8)))}


def _mutated_index(draw: random.Random) -> Mapping[str, bytes]:
    header, nbytes = _header()
    shards = {f"{part}.safetensors": _safetensors(json.dumps(header).encode(), nbytes) for part in "12"}
    shards["1.safetensors"] = _safetensors(json.dumps({"x": header["a.weight"]}).encode(), 48)
    places = {"x": "1.safetensors", **dict.fromkeys(TENSORS, "2.safetensors")}
    index = {"metadata": {"total_size": nbytes + 48}, "weight_map": places}
    return {"m.safetensors.index.json": mutated_json(draw, index), **shards}


@cache
def _onnx_model() -> bytes:
    import onnx
    from onnx import helper

    floats = helper.make_tensor("w", onnx.TensorProto.FLOAT, [4, 3], [0.5] * 12)
    raw = helper.make_tensor("v", onnx.TensorProto.INT4, [3], b"\0\0", raw=True)
    far = onnx.TensorProto(name="far", dims=[8], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "32")):
        far.external_data.add(key=key, value=value)
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[0, 1])
    inner = helper.make_graph([helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0])], "then", [], [])
    nodes = [
        axes, helper.make_node("Unsqueeze", ["w", "axes"], ["y"]),
        helper.make_node("If", ["y"], ["z"], then_branch=inner, else_branch=inner),
        helper.make_node("LinearRegressor", ["z"], ["r"], domain="ai.onnx.ml", coefficients=[1.0] * 4),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [], [], [floats, raw, far])
    return bytes(helper.make_model(graph).SerializeToString())


def _weights_of(file: str) -> Read:
    def read(folder: Path) -> None:
        show(weights(folder / file))

    return read


@cache
def _results() -> tuple[tuple[type, Any], ...]:
    """Return results of every class as plain data."""
    import torch
    from torch import nn

    from torchsummary_plus import MemTracker, compare, estimate_memory, graph, summary

    def net() -> nn.Module:
        body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        return nn.Sequential(body, nn.Flatten(), nn.Linear(4 * 36, 2))

    table = summary(net(), (3, 8, 8), verbose=0, memory="train", style="tree")
    steps = {name: estimate_memory(net(), (3, 8, 8), optimizer=name, gpu="H100") for name in ("sgd", "adam")}
    tracker = MemTracker(stream=io.StringIO(), device="cpu")
    tracker.track("a")
    kept = torch.zeros(256)
    tracker.track("b")
    header, nbytes = _header()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.safetensors")
        path.write_bytes(_safetensors(json.dumps(header).encode(), nbytes))
        stored = weights(path)
    both = compare({"a": net(), "b": nn.Conv2d(3, 2, 1)}, input_size=(3, 8, 8))
    results = (table, steps["adam"], compare(steps), both, graph(net(), (3, 8, 8)), tracker.report(), stored)
    assert kept.numel()  # Alive until the tracker has seen it.
    return tuple((type(result), result.to_dict()) for result in results)


def _mutated_result(draw: random.Random) -> Mapping[str, bytes]:
    number = draw.randrange(len(_results()))
    return {"number": str(number).encode(), "result.json": mutated_json(draw, _results()[number][1])}


def _read_result(folder: Path) -> None:
    kind, _ = _results()[int((folder / "number").read_text())]
    show(kind.from_json((folder / "result.json").read_bytes().decode("utf-8", "replace")))  # type: ignore[attr-defined]


def show(result: Any) -> None:
    """Print a result in every format that needs no other program, and write what a file would hold."""
    texts = [str(result), result.to_markdown(), result.to_latex(), result.to_html(), result.to_csv(), result.to_json()]
    texts += [getattr(result, view)() for view in ("to_mermaid", "to_dot") if hasattr(result, view)]
    if isinstance(result, ModelSummary):
        texts += [str(explain(row)) for row in result.rows]
        texts += [str(result.render(style=style, depth=1)) for style in ("tree", "torchsummary")]
        columns = ["params_arithmetic", "mult_adds_arithmetic", "connected_to"]
        texts += [str(result.graph()), result.to_csv(columns=columns)]
    if isinstance(result, MemoryEstimate):
        texts += [str(result.fits("24GiB")), str(result.by_call)]
        texts.append(result.to_csv(columns=["peak_own_bytes", "saved_bytes"]))
    for text in texts:
        text.encode()


CONFIGS: tuple[dict[str, Any], ...] = (
    {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
        "rope_theta": 10_000.0, "torch_dtype": "bfloat16", "attn_implementation": "sdpa", "num_labels": 3},
    {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 60,
        "text_config": {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "vocab_size": 64}, "vision_config": {"model_type": "clip_vision_model",
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 32,
        "patch_size": 8}},
    {"model_type": "mixtral", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "vocab_size": 64},
)  # fmt: skip


def _mutated_config(draw: random.Random) -> Mapping[str, bytes]:
    return {"config.json": mutated_json(draw, draw.choice(CONFIGS))}


def _read_config(folder: Path) -> None:
    sum(parameter.numel() for parameter in from_config(folder).parameters())


FORMATS: dict[str, tuple[Mutate, Read]] = {
    "safetensors": (_mutated_safetensors, _weights_of("m.safetensors")),
    "index": (_mutated_index, _weights_of("m.safetensors.index.json")),
    "onnx": (lambda draw: {"m.onnx": mutated_bytes(draw, _onnx_model())}, _weights_of("m.onnx")),
    "json": (_mutated_result, _read_result), "config": (_mutated_config, _read_config),
}  # fmt: skip
"""By format: what draws a mutant's files, and what reads them."""


if __name__ == "__main__":
    main()
