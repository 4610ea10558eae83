"""The zoo, part 2: what modules are made of, how they are wrapped and called, and how they decide."""

from __future__ import annotations

import collections
import copy
import random
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.nn.utils.parametrizations as P
from torch import Tensor, nn
from torch.nn.utils import prune

from tests.trace.zoo_case import case

# --- where parameters live ----------------------------------------------------------------------------------


@case((4,))
class RootParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.fc = nn.Parameter(torch.rand(4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x * self.scale)


@case((4,))
def parameters_on_every_floor() -> nn.Module:
    block = RootParameter()
    block.fc = RootParameter()
    return nn.Sequential(block, nn.ReLU())


@case((4,))
class ParameterLists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.listed = nn.ParameterList([torch.rand(4, 4), torch.rand(4)])
        self.named = nn.ParameterDict({"w": torch.rand(4, 3), "b": torch.rand(3)})

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.listed[0] + self.listed[1]) @ self.named["w"] + self.named["b"]


@case((4,))
class Unused(nn.Module):
    """A parameter that nothing reads, and modules that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.idle = nn.Linear(4, 2), nn.Linear(4, 7)
        self.branch = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.BatchNorm1d(5), nn.ReLU()))
        self.lost = nn.Parameter(torch.rand(9))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


@case((5,), dtypes=[torch.int64])
class TiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.words(ids))


@case((4,))
class SharedModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.again = self.fc
        self.both = nn.ModuleList([self.fc, nn.Sequential(self.fc, nn.ReLU())])

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(self.fc(x))
        for layer in self.both:
            x = layer(x)
        return x


@case((4,))
class TwoParents(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        core = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.left, self.right = nn.Sequential(core, nn.ReLU()), nn.Sequential(nn.Tanh(), core)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


@case((4,))
class CalledOutsideItsParent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        self.heads = nn.ModuleDict({"a-1": nn.Linear(3, 2), "b c": nn.Linear(3, 2)})

    def forward(self, x: Tensor) -> Tensor:
        return self.heads["b c"](self.encoder[0](x)) + self.heads["a-1"](self.encoder(x))


@case((4,))
def shared_storage() -> nn.Module:
    """Two parameters, one storage: 28 + 4 numbers."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.detach().view(4, 4))
    return model


@case((3, 8, 8))
def partly_frozen() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
    model[0].weight.requires_grad = False
    model[2].requires_grad_(False)
    return model


@case((4,))
class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("table", torch.rand(1000))
        self.register_buffer("scratch", torch.rand(10, dtype=torch.float64), persistent=False)
        self.register_buffer("absent", None)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        self.scratch = self.scratch * 2
        return self.fc(x) + self.table[:4]


@case((4,))
class NoParameters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


@case((4,))
def no_parameters_inside() -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Dropout(), nn.Softmax(1))


@case((4,))
def one_linear() -> nn.Module:
    return nn.Linear(4, 2)


@case((3, 8, 8))
def one_conv() -> nn.Module:
    return nn.Conv2d(3, 6, 3, groups=3)


@case((4,))
def one_identity() -> nn.Module:
    return nn.Identity()


@case((4,))
def empty_sequential() -> nn.Module:
    return nn.Sequential()


# --- parameters computed from others ------------------------------------------------------------------------


@case((4,))
def weight_norm_by_hook() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)), nn.ReLU())


@case((4,))
def weight_norm() -> nn.Module:
    return nn.Sequential(P.weight_norm(nn.Linear(4, 3)), nn.ReLU())


@case((3, 6, 6))
def spectral_norm() -> nn.Module:
    return nn.Sequential(P.spectral_norm(nn.Conv2d(3, 4, 3)), nn.Flatten())


@case((3, 6, 6))
def spectral_norm_by_hook() -> nn.Module:
    return nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(3, 4, 3)), nn.Flatten())


@case((4,))
def orthogonal() -> nn.Module:
    return nn.Sequential(P.orthogonal(nn.Linear(4, 4)), nn.ReLU())


@case((4,))
def pruned() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.random_unstructured(model[0], "bias", amount=1)
    prune.remove(prune.ln_structured(model[1], "weight", amount=0.5, n=2, dim=0), "weight")
    return model


# --- quantized modules --------------------------------------------------------------------------------------


def _quantized(model: nn.Module, kinds: set[type]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model.eval(), kinds, dtype=torch.qint8)


@case((4,), params=(4 * 6 + 6) + (6 * 2 + 2), real_only="quantized kernels compute for real only")
def dynamically_quantized_linear() -> nn.Module:
    return _quantized(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), {nn.Linear})


@case((5, 4), params=4 * (4 * 6 + 6 * 6 + 6 + 6), real_only="quantized kernels compute for real only")
def dynamically_quantized_lstm() -> nn.Module:
    return _quantized(nn.Sequential(nn.LSTM(4, 6, batch_first=True)), {nn.LSTM})


@case((3, 6, 6), params=3 * 4 * 9 + 4, real_only="quantized kernels compute for real only")
def statically_quantized() -> nn.Module:
    quantization = torch.ao.quantization
    model = nn.Sequential(quantization.QuantStub(), nn.Conv2d(3, 4, 3), nn.ReLU(), quantization.DeQuantStub()).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)
        prepared = quantization.prepare(model)
        prepared(torch.rand(2, 3, 6, 6))
        return quantization.convert(prepared)


# --- lazy and on meta ---------------------------------------------------------------------------------------


@case((3, 8, 8), params=(3 * 4 * 9 + 4) + 2 * 4 + (4 * 36 * 5 + 5))
def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(5))


@case((4,), params=4 * 3 + 3 + 5)
class LazyInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.scale = nn.LazyLinear(3), nn.Parameter(torch.rand(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


@case((3, 8, 8), fake_only="nothing to compute with")
def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))


@case((4,), fake_only="nothing to compute with")
def enormous_on_meta() -> nn.Module:
    """A quarter of a trillion parameters."""
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(4, 500_000), nn.Linear(500_000, 500_000))


# --- attention ----------------------------------------------------------------------------------------------


@case((6, 8))
class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


@case((6, 8), (3, 5))
class CrossAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=5, vdim=5, add_bias_kv=True, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor) -> Any:
        return self.attention(x, memory, memory)


@case((6, 8))
def attention_in_eval() -> nn.Module:
    return SelfAttention().eval()


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


@case((6, 8), (4, 8))
def whole_transformer() -> nn.Module:
    return nn.Transformer(8, 2, 1, 1, 16, batch_first=True)


@case((2, 6, 8))
class FunctionalAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@case(data=lambda: {"input_ids": torch.arange(10).reshape(2, 5)}, needs="transformers")
def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=11, bos_token_id=0, eos_token_id=0, **sizes))


@case(data=lambda: {"input_ids": torch.arange(10).reshape(2, 5)}, needs="transformers")
def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=11, num_key_value_heads=1, **sizes))


# --- wrappers -----------------------------------------------------------------------------------------------


def _small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


@case((4,), opaque="the wrapper is taken off")
def data_parallel() -> nn.Module:
    return nn.DataParallel(_small())


@case((4,), opaque="dynamo runs the frames")
def compiled() -> nn.Module:
    return torch.compile(_small(), backend="eager")


@case((4,), opaque="dynamo runs the frames")
def compiled_in_place() -> nn.Module:
    model = nn.Sequential(_small(), nn.ReLU())
    model[0].compile(backend="eager")
    return model


@case((4,), opaque="the interpreter runs the calls")
def scripted() -> nn.Module:
    return _script(_small())


@case((4,), opaque="the interpreter runs the calls")
def traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(_small(), torch.rand(2, 4))


@case((4,), opaque="the interpreter runs the calls")
def scripted_inside() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), _script(_small()))


def _script(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(model)


@case((4,))
def fx_graph() -> nn.Module:
    return torch.fx.symbolic_trace(RootParameter())


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

    _one_process_group()
    model = _small()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    return model


@case((4,), opaque="the wrapper is taken off")
def distributed_data_parallel() -> nn.Module:
    _one_process_group()
    return nn.parallel.DistributedDataParallel(_small())


# --- how modules are called ---------------------------------------------------------------------------------


@case((4,))
class CalledThroughForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out.forward(self.fc.forward(x).relu())


@case((4,))
class RecursesThroughDict(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"fc": nn.Linear(4, 4)})
        if depth:
            self.parts["deeper"] = RecursesThroughDict(depth - 1)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts.values():
            x = part(x)
        return x


@case((4,))
class CallsItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, depth: int = 3) -> Tensor:
        return self(self.fc(x), depth - 1) if depth else x


@case((4,), params=3 * (4 * 4 + 4))
class PlainList(nn.Module):
    """Modules in a Python list: torch does not register them, the forward runs them all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.layers = [nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4))]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.fc(x)


class Leaf(nn.Module):
    """Knows its parent, through a plain list: a cycle that `modules()` does not see."""

    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        self.parents = [parent]
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.parents[0].scale


@case((4,))
class KnowsItsParent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.leaf = Leaf(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.leaf(x)


@case((4,), opaque="torchsummary gives no row to a module that no module holds")
class MadeInForward(nn.Module):
    """The ReLU is made anew in each forward: no tree of modules ever holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.ReLU()(self.fc(x))


@case((4,), params=4 * 2 + 2)
class BuildsOnFirstCall(nn.Module):
    """Registers its only layer when the first input has told it the size."""

    fc: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "fc"):
            self.fc = nn.Linear(x.size(1), 2)
        return self.fc(x)


@case((4,))
class OddModule(nn.Module):
    """Equal to everything, empty, false, and unhashable: whoever compares modules meets it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = nn.Module.__hash__

    def __len__(self) -> int:
        return 0

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.fc(x))


@case((4,))
def deep_nesting() -> nn.Module:
    model: nn.Module = nn.Linear(4, 4)
    for _ in range(60):
        model = nn.Sequential(model)
    return model


@case((4,))
def user_hooks() -> nn.Module:
    """The user's own hooks change what goes in and what comes out."""
    model = _small()
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda module, args, output: torch.cat([output, output[:, :0]], 1))
    model[2].register_full_backward_hook(lambda module, grad_in, grad_out: None)
    return model


@case((4,))
class NoGradInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.fc = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.frozen(x)
        return self.fc(x)


@case((4,))
class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = _small()

    def forward(self, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)


@case((4,))
class GradientInForward(nn.Module):
    """A force is minus the gradient of an energy, taken inside `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return -gradient


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@case((4,))
class CustomFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return _Double.apply(self.fc(x))


@case((4,))
class Vmapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: row @ self.w)(x)


@case((4,))
class CopiesItsLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = copy.deepcopy(self.fc.state_dict())
        return self.fc(x) + weights["bias"]


@case((4,))
class FunctionalCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        doubled = {name: 2 * p for name, p in self.fc.named_parameters()}
        return torch.func.functional_call(self.fc, doubled, (x,))


# --- tensors that are neither parameters nor buffers --------------------------------------------------------

_CONSTANT = torch.arange(4.0)


@case((4,))
class LooseTensors(nn.Module):
    """Tensors in plain attributes, in lists, in the module's globals, and made on the spot."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.mean, self.anchors = torch.rand(4), [torch.rand(4), {"deep": torch.rand(4)}]

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) * self.anchors[0] + self.anchors[1]["deep"] + _CONSTANT
        x = x + torch.tensor([1.0, 2, 3, 4]) + torch.arange(4, device=x.device) + x.new_zeros(4)
        return self.fc(x) * torch.linspace(0, 1, x.size(1)) + torch.rand(4)


@case((4,))
class AsksQuestions(nn.Module):
    """Reads dtypes, devices and types, as careful code does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        weight = next(self.parameters())
        assert isinstance(weight, nn.Parameter) and isinstance(self.fc.weight, Tensor) and torch.is_tensor(x)
        assert x.device == weight.device and not x.is_cuda and x.dtype == weight.dtype and x.is_floating_point()
        x = x.to(weight.device).type_as(weight).contiguous().cpu()
        return self.fc(x) if x.dim() == 2 and len(x) else self.fc(x[None])


# --- decisions ----------------------------------------------------------------------------------------------


@case((4,), real_only="an `if` on the data")
class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.high(x) if x.abs().sum() >= 0 else self.low(x)


@case((4,), real_only="a number read from the data")
class ReadsItem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(1 + int((x * 0).max().item())):
            x = self.fc(x)
        return x


@case((4,), real_only="the shape is the data's")
class PicksRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x[x[:, 0] >= 0])


@case((4,), real_only="numpy computes")
class ThroughNumpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.from_numpy(x.detach().numpy() * 2))


@case((4,), real_only="a list of the data")
class ThroughLists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tensor(x.tolist()))


@case((4,), volatile="a coin is tossed")
class Tosses(nn.Module):
    """A layer is dropped at random: by Python's generator, by torch's and by numpy's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        tosses = random.random(), float(np.random.rand()), torch.rand(()).item()
        for layer, toss in zip(self.layers, tosses, strict=True):
            x = layer(x) if toss < 0.5 else x
        return x + torch.randn_like(x)


# --- operators ----------------------------------------------------------------------------------------------


@case((8,))
class FourierAndInverse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.eye(5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x).abs() @ torch.linalg.inv(self.w)


@case((3, 8, 8))
class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.bilinear = nn.Bilinear(3, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.up(F.relu(self.down(x))).mean((2, 3))
        return self.bilinear(pooled, pooled)


@case((2, 5))
class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(2, 5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bhi,hio->bho", x, self.w)


# --- state kept by the model --------------------------------------------------------------------------------


@case((4,))
class CountsItsCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(x)


@case((4,))
class RemembersOutputs(nn.Module):
    """Appends to a list, fills a dict, sets an attribute it never had, and forgets another."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.history: list[Tensor] = []
        self.cache: dict[str, Tensor] = {"old": torch.rand(4)}
        self.first = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        self.history.append(x)
        self.cache["new"], self.last = x, x
        self.cache.pop("old", None)
        self.__dict__.pop("first", None)
        return x


class Memory:
    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.total = torch.zeros(4)


@case((4,))
class KeepsAnObject(nn.Module):
    """A cache object of the user's own, and running sums kept in place in plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.memory, self.running = nn.Linear(4, 4), Memory(), torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        self.memory.keys.append(x)
        self.memory.total = self.memory.total + x.sum(0)
        self.running += x.detach().mean(0)
        return x


@case((4,))
class ChangesItself(nn.Module):
    """Writes into its own weights and modes while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(4, 4), nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.fc.weight.mul_(0.5)
            self.fc.bias.data.fill_(1.0)
        self.drop.eval()
        self.fc.bias.requires_grad_(False)
        return self.drop(self.fc(x))


@case((4,))
class KeepsCollections(nn.Module):
    """One of each container, each written to."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.queue, self.counter = collections.deque([1], maxlen=3), collections.Counter("aab")
        self.names, self.lists = {"a"}, collections.defaultdict(list, old=[0])
        self.ordered, self.raw, self.array = collections.OrderedDict(a=1, b=2), bytearray(b"x"), np.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.queue.append(2)
        self.counter["a"] += 1
        self.names.add("b")
        self.lists["new"].append(x)
        self.lists["old"].append(1)
        self.ordered.move_to_end("a")
        self.raw.append(1)
        self.array += 1
        return self.fc(x)


@case((4,))
class OwnGenerators(nn.Module):
    """Random numbers from generators that the module itself holds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.torchs = nn.Linear(4, 4), torch.Generator().manual_seed(3)
        self.pythons, self.numpys, self.old = random.Random(3), np.random.default_rng(3), np.random.RandomState(3)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.pythons.random() + float(self.numpys.random()) + float(self.old.rand())
        return self.fc(x) * scale + torch.rand(4, generator=self.torchs)


@case((4,))
class SwapsItsData(nn.Module):
    """Gives its parameters other tensors behind their backs, and attributes of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.wide = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.fc.weight.data = self.fc.weight.data * 2
        self.fc.bias.visited = True
        return self.wide.double()(self.fc(x).double())


@case((4,))
class WritesOut(nn.Module):
    """Results written into tensors that were empty: they take the size of what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.keep = nn.Linear(4, 4), nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            joined = torch.cat([x, x], 1, out=x.new_empty(0))
            summed = torch.add(self.fc(x), 1, out=torch.empty(0))
        return self.keep(summed), self.keep(joined)


@case((4,), real_only="an `if` on the data, in a `try`")
class CatchesAll(nn.Module):
    """Whatever goes wrong goes another way: a fake pass that cannot decide must not take it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.rescue = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.fc(x) if bool((x >= 0).all()) else self.fc(-x)
        except Exception:
            return self.rescue(x)


@case((4, 6, 6))
def mixed_modes() -> nn.Module:
    """BatchNorm counters move in training; a child stands in eval inside a training root."""
    model = nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Dropout(), nn.InstanceNorm2d(4))
    model[1].eval()
    return model


@case((4,))
def with_gradients() -> nn.Module:
    model = _small()
    model(torch.rand(2, 4)).sum().backward()
    return model
