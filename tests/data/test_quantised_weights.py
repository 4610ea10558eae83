"""Checkpoints with packed weights: each layout counts the parameters of the model that it stands for."""

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest

from torchsummary_plus import InputError, WeightsFile, weights
from torchsummary_plus.api.cli import main
from torchsummary_plus.data.weight_files import BITS, INTEGERS

Tensors = dict[str, tuple[str, list[int]]]


def stored(path: Path, tensors: Tensors, values: dict[str, list[int]] | None = None) -> Path:
    """Write a safetensors file of zeros, or of the integers in ``values``."""
    header, data = {}, b""
    for name, (dtype, shape) in tensors.items():
        begin = len(data)
        own = (values or {}).get(name)
        data += (
            bytes(prod(shape) * BITS[dtype] // 8) if own is None else struct.pack(f"<{len(own)}{INTEGERS[dtype]}", *own)
        )
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


NORM: Tensors = {"norm.weight": ("F16", [64])}
IN, OUT = 256, 96
LOGICAL = IN * OUT


def gptq(bits: int, **left_out: bool) -> Tensors:
    words = bits * IN // 32
    tensors: Tensors = {
        "fc.qweight": ("I32", [words, OUT]),
        "fc.scales": ("F16", [IN // 128, OUT]),
        "fc.qzeros": ("I32", [IN // 128, OUT * bits // 32]),
        "fc.g_idx": ("I32", [IN]),
    }
    return {name: tensor for name, tensor in tensors.items() if name.partition(".")[2] not in left_out}


BNB_4: Tensors = {
    "fc.weight": ("U8", [LOGICAL // 2, 1]),
    "fc.weight.absmax": ("U8", [LOGICAL // 64]),
    "fc.weight.nested_absmax": ("F32", [LOGICAL // 64 // 256]),
    "fc.weight.quant_map": ("F32", [16]),
    "fc.weight.nested_quant_map": ("F32", [256]),
    "fc.weight.quant_state.bitsandbytes__nf4": ("U8", [90]),
}

LAYOUTS: list[tuple[str, Tensors, dict[str, list[int]], dict[str, Any] | None]] = [
    *((f"GPTQ of {bits} bits", gptq(bits), {}, None) for bits in (2, 3, 4, 8)),
    *((f"GPTQ of {bits} bits without an order", gptq(bits, g_idx=True), {}, None) for bits in (2, 3, 4, 8)),
    ("GPTQ by its groups", gptq(4, g_idx=True, qzeros=True), {}, None),
    ("GPTQ by its config", gptq(8, g_idx=True, qzeros=True, scales=True), {}, {"quantization_config": {"bits": 8}}),
    ("AWQ", {
        "fc.qweight": ("I32", [IN, OUT // 8]), "fc.qzeros": ("I32", [2, OUT // 8]), "fc.scales": ("F16", [2, OUT]),
    }, {}, {"quantization_config": {"quant_method": "awq", "bits": 4}}),
    ("compressed-tensors by its shape", {
        "fc.weight_packed": ("I32", [OUT, -(-(IN - 3) // 8)]), "fc.weight_scale": ("BF16", [OUT, 2]),
        "fc.weight_shape": ("I64", [2]), "fc.weight_zero_point": ("I32", [OUT // 8, 2]), "fc.input_scale": ("F32", [1]),
    }, {"fc.weight_shape": [OUT, IN]}, None),
    ("compressed-tensors by its config", {
        "fc.weight_packed": ("I32", [OUT, IN // 4]), "fc.weight_scale": ("BF16", [OUT, 2]),
    }, {}, {"quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 8}}}}}),
    ("compressed-tensors, NVFP4", {
        "fc.weight_packed": ("U8", [OUT, IN // 2]), "fc.weight_scale": ("F8_E4M3", [OUT, IN // 16]),
        "fc.weight_global_scale": ("F32", [1]), "fc.input_global_scale": ("F32", [1]),
    }, {}, None),
    ("modelopt, NVFP4", {
        "fc.weight": ("U8", [OUT, IN // 2]), "fc.weight_scale": ("F8_E4M3", [OUT, IN // 16]),
        "fc.weight_scale_2": ("F32", []), "fc.input_scale": ("F32", []), "attn.k_scale": ("F32", [1]),
    }, {}, None),
    ("MXFP4", {
        "mlp.up_blocks": ("U8", [4, OUT // 4, IN // 32, 16]), "mlp.up_scales": ("U8", [4, OUT // 4, IN // 32]),
    }, {}, {"quantization_config": {"quant_method": "mxfp4"}}),
    ("bitsandbytes of 4 bits", BNB_4, {}, None),
    ("bitsandbytes of 4 bits in words", {**BNB_4, "fc.weight": ("BF16", [LOGICAL // 4, 1])}, {}, None),
    ("bitsandbytes of 8 bits", {
        "fc.weight": ("I8", [OUT, IN]), "fc.SCB": ("F32", [OUT]), "fc.weight_format": ("U8", []),
    }, {}, None),
    *((f"MLX of {bits} bits", {"fc.weight": ("U32", [OUT, IN * bits // 32]), "fc.scales": ("F16", [OUT, IN // 64]),
                               "fc.biases": ("F16", [OUT, IN // 64])}, {}, None) for bits in (2, 3, 4, 6, 8)),
    ("MLX by its config", {"fc.weight": ("U32", [OUT, IN // 8]), "fc.scales": ("F16", [OUT, IN // 32]),
                           "fc.biases": ("F16", [OUT, IN // 32])}, {}, {"quantization": {"group_size": 32, "bits": 4}}),
    ("MLX with a layer's own bits", {"fc.weight": ("U32", [OUT, IN // 4]), "fc.scales": ("F16", [OUT, IN // 32])}, {},
     {"quantization": {"group_size": 32, "bits": 4, "fc": {"group_size": 32, "bits": 8}}}),
    ("FP8", {"fc.weight": ("F8_E4M3", [OUT, IN]), "fc.weight_scale_inv": ("F32", [1, 2])}, {}, None),
    ("FP8 of DeepSeek's own names", {"fc.weight": ("F8_E4M3", [OUT, IN]), "fc.scale": ("F32", [1, 2])}, {}, None),
    ("FP4 in bytes", {"fc.weight": ("I8", [OUT, IN // 2]), "fc.scale": ("F8_E8M0", [OUT, IN // 32])}, {}, None),
    ("MLX, MXFP4", {"fc.weight": ("U32", [OUT, IN // 8]), "fc.scales": ("U8", [OUT, IN // 32])}, {}, None),
    ("int8 of fused experts", {"mlp.up": ("I8", [OUT, IN]), "mlp.up_scale": ("F32", [OUT])}, {}, None),
    ("FP8 of fused experts", {"mlp.up": ("F8_E4M3", [OUT, IN]), "mlp.up_scale_inv": ("F32", [1, 2])}, {}, None),
    ("AQLM", {"fc.codes": ("I16", [OUT, IN // 8, 1]), "fc.codebooks": ("F16", [1, 1 << 16, 1, 8]),
              "fc.scales": ("F16", [OUT, 1, 1, 1])}, {}, None),
    ("HQQ", {"fc.W_q": ("U8", [LOGICAL // 64 // 2, 64]), "fc.scale": ("F16", [LOGICAL // 64, 1]),
             "fc.zero": ("F16", [LOGICAL // 64, 1]), "fc.shape": ("I64", [2])}, {"fc.shape": [OUT, IN]}, None),
    ("exllamav2", {
        "fc.q_weight": ("I32", [40, OUT]), "fc.q_scale": ("I32", [8, OUT // 8]), "fc.q_scale_max": ("F16", [8]),
        "fc.q_groups": ("I16", [16]), "fc.q_invperm": ("I32", [IN]),
    }, {}, None),
    ("exllamav3", {
        "fc.trellis": ("I16", [IN // 16, OUT // 16, 48]), "fc.suh": ("F16", [IN]), "fc.svh": ("F16", [OUT]),
    }, {}, None),
    ("BitNet", {"fc.weight": ("U8", [OUT // 4, IN]), "fc.weight_scale": ("BF16", [1])}, {},
     {"quantization_config": {"quant_method": "bitnet"}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tensors", "values", "config"), [each[1:] for each in LAYOUTS], ids=[each[0] for each in LAYOUTS]
)
def test_each_layout_counts_the_model(tmp_path: Path, tensors: Tensors, values: Any, config: Any) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    result = weights(stored(tmp_path / "model.safetensors", {**NORM, **tensors}, values))
    assert result.total_params == LOGICAL + 64
    assert result.total_bytes == sum(
        -(-prod(shape) * BITS[dtype] // 8) for dtype, shape in (*NORM.values(), *tensors.values())
    )
    assert WeightsFile.from_json(result.to_json()) == result
    assert sum(row["num_params"] for _, row in result.to_dataframe().iterrows()) == LOGICAL + 64


def test_plain_checkpoints_stay_as_they_are(tmp_path: Path) -> None:
    plain: Tensors = {
        "attn.q_scale": ("F32", [64]), "norm.scale": ("F32", [64]), "codes": ("F32", [3, 4, 5]),
        "x.scales": ("F32", [7]), "x.weight": ("F32", [7]),
        "y.weight": ("U8", [4, 4]), "z.biases": ("F32", [5]), "shape": ("I64", [2]),
    }  # fmt: skip
    result = weights(stored(tmp_path / "m.safetensors", plain))
    assert result.total_params == sum(prod(shape) for _, shape in plain.values())


def test_shards_are_counted_together(tmp_path: Path) -> None:
    parts = {name: {name: tensor} for name, tensor in gptq(4).items()}
    for number, tensors in enumerate(parts.values(), 1):
        stored(tmp_path / f"model-{number:05}-of-{len(parts):05}.safetensors", tensors)
    assert weights(tmp_path).total_params == LOGICAL
    index = {name: f"model-{number:05}-of-{len(parts):05}.safetensors" for number, name in enumerate(parts, 1)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert weights(tmp_path) == weights(tmp_path / "model.safetensors.index.json").__class__(
        tmp_path.name, weights(tmp_path / "model.safetensors.index.json").tensors
    )


@pytest.mark.parametrize(("shape", "params"), [([1 << 40, 1 << 40], 64), ([-1, 4], 512), ([-8, -8], 512), ([0, 0], 0)])
def test_impossible_shapes_are_not_believed(tmp_path: Path, shape: list[int], params: int) -> None:
    layer: Tensors = {"fc.weight_packed": ("I32", [8, 8]), "fc.weight_shape": ("I64", [2])}
    result = weights(stored(tmp_path / "m.safetensors", layer, {"fc.weight_shape": shape}))
    assert result.total_params == params


def test_a_broken_config_is_left_out_with_a_warning(tmp_path: Path) -> None:
    path = stored(tmp_path / "m.safetensors", gptq(4, g_idx=True, qzeros=True))
    (tmp_path / "config.json").write_text("{")
    with pytest.warns(UserWarning, match=r"config\.json is left out, though packed weights may need it"):
        assert weights(path).total_params == LOGICAL


def test_a_folder_has_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"has no \.safetensors, \.gguf, \.onnx files$"):
        weights(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match="a pickle has no header"):
        weights(tmp_path)
    inner = tmp_path / "unet"
    inner.mkdir()
    stored(inner / "a.safetensors", NORM)
    assert weights(inner) == WeightsFile("unet", weights(inner / "a.safetensors").tensors)
    assert main([str(inner)]) == 0 and "Total params: 64" in capsys.readouterr().out
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(InputError, match="its folders 'unet' have some"):
        weights(tmp_path)
    stored(inner / "b.safetensors", NORM)
    with pytest.raises(InputError, match=r"weights of several models; pass one of 'a\.safetensors', 'b\.safetensors'"):
        weights(inner)
    stored(inner / "model.safetensors", {**NORM, "x": ("F32", [2])})
    assert weights(inner).total_params == 66
    for number in (1, 2):
        stored(tmp_path / f"m-0000{number}-of-00002.safetensors", NORM)
    with pytest.raises(InputError, match=r"another file has 'norm\.weight' too"):
        weights(tmp_path)
    (tmp_path / "m-00001-of-00002.safetensors").unlink()
    stored(tmp_path / "m-00002-of-00003.safetensors", NORM)
    with pytest.raises(InputError, match="several models"):
        weights(tmp_path)
