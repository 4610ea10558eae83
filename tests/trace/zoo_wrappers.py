"""The zoo: attention, and modules inside wrappers."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.trace.zoo_case import case


@case((6, 8))
@of_parts(lambda: {"attention": nn.MultiheadAttention(8, 2, batch_first=True)})
def SelfAttention(self, x: Tensor) -> Tensor:
    return self.attention(x, x, x, need_weights=False)[0]


def _encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


@case((6, 8))
def encoder_in_training() -> nn.Module:
    return _encoder()


@case((6, 8))
def encoder_fast_path() -> nn.Module:
    return _encoder().eval()


@case(
    data=lambda: {"src": torch.rand(2, 6, 8), "src_key_padding_mask": torch.arange(6) > torch.tensor([[5], [3]])},
    real_only="nested tensors are real only",
)
def encoder_with_padding() -> nn.Module:
    return _encoder().eval()


@case(data=lambda: {"input_ids": torch.arange(10).reshape(2, 5)}, needs="transformers")
def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=11, bos_token_id=0, eos_token_id=0, **sizes))


def _small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


@case((4,), opaque="the wrapper is taken off")
def data_parallel() -> nn.Module:
    return nn.DataParallel(_small())


@case((4,), opaque="dynamo runs the frames")
def compiled() -> nn.Module:
    return torch.compile(_small(), backend="eager")


@case((4,), opaque="the interpreter runs the calls")
def scripted() -> nn.Module:
    return _script(_small())


def _script(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(model)


def _one_process_group() -> None:
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


@case((4,), needs="torch.distributed.fsdp", real_only="its runtime checks where its storage is")
def fully_sharded_1() -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    _one_process_group()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FullyShardedDataParallel(_small(), device_id=torch.device("cpu"), use_orig_params=True)


@case((4,), needs="torch.distributed.fsdp._fully_shard", real_only="a DTensor is no plain tensor")
def fully_sharded_2() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip(f"torch {torch.__version__} cannot run fully_shard on the CPU")
    _one_process_group()
    model = _small()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    return model
