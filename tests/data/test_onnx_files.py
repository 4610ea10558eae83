"""ONNX files: their contents are read back exactly, and hostile files are rejected."""

import sys
from pathlib import Path
from typing import Any

import pytest

from torchsummary_plus import InputError, MissingExtraError, WeightsFile, weights
from torchsummary_plus.api.cli import main
from torchsummary_plus.data import onnx_files

onnx: Any = pytest.importorskip("onnx")


def tensor(name: str, shape: list[int], kind: str = "FLOAT", raw: int | None = None) -> Any:
    result = onnx.TensorProto(name=name, dims=shape, data_type=onnx.TensorProto.DataType.Value(kind))
    size = 1
    for axis in shape:
        size *= axis
    result.raw_data = bytes(-(-size * onnx_files.BITS.get(kind, 8) // 8) if raw is None else raw)
    return result


def external(name: str, shape: list[int], **told: str) -> Any:
    result = onnx.TensorProto(name=name, dims=shape, data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in told.items():
        result.external_data.add(key=key, value=value)
    return result


def saved(path: Path, *tensors: Any, nodes: tuple[Any, ...] = ()) -> Path:
    graph = onnx.GraphProto(name="g", initializer=tensors, node=nodes)
    path.write_bytes(onnx.ModelProto(ir_version=9, graph=graph).SerializeToString())
    return path


def test_it_lists_what_the_graphs_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    constant = onnx.NodeProto(op_type="Constant", output=["k"])
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, t=tensor("", [3], "INT64"))
    branch = onnx.NodeProto(op_type="If", output=["y"])
    inner = onnx.GraphProto(name="then", initializer=[tensor("then.w", [2, 2], "FLOAT16")])
    branch.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH, g=inner)
    far = external("a.far", [8, 4], location="weights.bin", length="128")
    half = tensor("a.four", [3], "INT4")
    path = saved(tmp_path / "m.onnx", tensor("a.w", [4, 3]), far, half, nodes=(constant, branch))
    result = weights(path)
    assert {stored.name: (stored.shape, stored.dtype, stored.nbytes, stored.file) for stored in result.tensors} == {
        "a.w": ((4, 3), "FLOAT", 48, "m.onnx"),
        "a.far": ((8, 4), "FLOAT", 128, "weights.bin"),
        "a.four": ((3,), "INT4", 2, "m.onnx"),
        "k": ((3,), "INT64", 24, "m.onnx"),
        "then.w": ((2, 2), "FLOAT16", 8, "m.onnx"),
    }
    assert WeightsFile.from_json(result.to_json()) == result
    assert main([str(path), "--depth", "1"]) == 0
    assert "Total params: 51" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (tensor("w", [3], raw=4), "do not match its shape"),
        (external("w", [3], location="x", length="5"), "do not match its shape"),
        (onnx.TensorProto(name="w", dims=[1 << 40], data_type=1), "bytes of 'w' do not match its shape"),
        (onnx.TensorProto(name="w", dims=[-1], data_type=1), "has an invalid shape"),
        (onnx.TensorProto(name="w", dims=[1] * 1000, data_type=1), "has an invalid shape"),
        (onnx.TensorProto(name="w", dims=[1], data_type=77), "unknown type 77"),
    ],
)
def test_hostile_tensors_are_refused(tmp_path: Path, tensors: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        weights(saved(tmp_path / "m.onnx", tensors))


def test_names_are_text(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", tensor("qqqq", [1]))
    path.write_bytes(path.read_bytes().replace(b"qqqq", b"q\xff\xfeq"))
    with pytest.raises(InputError, match=r"the name b'q\\xff\\xfeq' is not UTF-8"):
        weights(path)


@pytest.mark.parametrize(("values", "params"), [
    ({"value_floats": [1.0] * 4}, 4), ({"value_float": 1.0}, 1), ({"value_ints": [1] * 5}, 0), ({"value_int": 1}, 0),
])  # fmt: skip
def test_constants_may_be_plain_numbers(tmp_path: Path, values: Any, params: int) -> None:
    node = onnx.helper.make_node("Constant", [], ["k"], **values)
    assert weights(saved(tmp_path / "m.onnx", nodes=(node,))).total_params == params


@pytest.mark.parametrize(("kind", "values", "params"), [
    ("LinearRegressor", {"coefficients": [1.0] * 4, "intercepts": [1.0]}, 5),
    ("TreeEnsembleRegressor", {"nodes_values": [1.0] * 3, "target_weights": [1.0] * 2, "nodes_hitrates": [1.0] * 3,
                               "nodes_featureids": [0, 1, 2]}, 5),
    ("SVMRegressor", {"support_vectors": [1.0] * 3, "coefficients": [1.0] * 2, "kernel_params": [1.0] * 3}, 5),
    ("Scaler", {"offset": [1.0] * 2, "scale": [1.0] * 2}, 4),
])  # fmt: skip
def test_learned_models_have_weights(tmp_path: Path, kind: str, values: Any, params: int) -> None:
    node = onnx.helper.make_node(kind, ["x"], ["y"], domain="ai.onnx.ml", **values)
    result = weights(saved(tmp_path / "m.onnx", nodes=(node,)))
    assert (result.total_params, result.total_bytes) == (params, 4 * params)


def test_shapes_and_axes_are_no_parameters(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = (
        node("Constant", [], ["axes"], value_ints=[0]),
        node("Constant", [], ["part"], value=tensor("", [1], "INT64")),
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "part"], ["batch"]),
        node("Concat", ["batch", "rest"], ["target"], axis=0),
        node("Reshape", ["table", "target"], ["y"]),
        node("Unsqueeze", ["y", "axes"], ["z"]),
    )
    result = weights(saved(tmp_path / "m.onnx", tensor("rest", [2], "INT64"), tensor("table", [6, 4]), nodes=nodes))
    assert {entry.name: entry.num_params for entry in result.tensors} == {
        "rest": 0, "table": 24, "axes": 0, "part": 0,
    }  # fmt: skip
    assert result.total_params == 24


def test_quantised_weights_count_unpacked(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = (
        node("DequantizeLinear", ["q", "scale", "zero"], ["w"]),
        node("DequantizeLinear", ["bias", "scale"], ["float bias"]),
        node(
            "MatMulNBits",
            ["x", "b", "scales", "zeros"],
            ["y"],
            domain="com.microsoft",
            K=64,
            N=8,
            bits=4,
            block_size=32,
        ),
        node("Mul", ["y", "shared"], ["z"]),
        node("QuantizeLinear", ["z", "shared"], ["out"]),
    )
    tensors = (
        tensor("q", [8, 8], "INT8"), tensor("scale", [8]), tensor("zero", [8], "INT8"), tensor("bias", [8], "INT32"),
        tensor("b", [8, 2, 16], "UINT8"), tensor("scales", [16]), tensor("zeros", [8], "UINT8"), tensor("shared", [1]),
    )  # fmt: skip
    result = weights(saved(tmp_path / "m.onnx", *tensors, nodes=nodes))
    assert {entry.name: entry.num_params for entry in result.tensors if entry.num_params} == {
        "q": 64, "bias": 8, "b": 64 * 8, "shared": 1,
    }  # fmt: skip


def test_files_that_are_no_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    for data in (b"", b"no protobuf at all", bytes(1000)):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"m\.onnx cannot be read"):
            weights(path)
    monkeypatch.setattr(onnx_files, "MOST_BYTES", 10)
    with pytest.raises(InputError, match="the limit is 10: save its tensors as external data"):
        weights(path)
    with pytest.raises(InputError, match="cannot be read"):
        weights(tmp_path / "none.onnx")


def test_without_onnx_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r'pip install "torchsummary_plus\[onnx\]"'):
        weights(path)
