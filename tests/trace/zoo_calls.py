"""The zoo: attention, modules inside wrappers, how modules are called, and tensors neither parameters nor buffers."""

import warnings
from collections import OrderedDict, deque

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.trace.zoo_case import Fc, case


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


@case((4,))
@of_parts(lambda: {"fc": nn.Linear(4, 4), "out": nn.Linear(4, 2)})
def CalledThroughForward(self, x: Tensor) -> Tensor:
    return self.out.forward(self.fc.forward(x).relu())


@case((4,))
class CallsItself(Fc):
    def forward(self, x: Tensor, depth: int = 3) -> Tensor:
        return self(self.fc(x), depth - 1) if depth else x


@case((4,))
@of_parts(lambda: {"fc": nn.Linear(4, 4), "layers": [nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4))]})
def PlainList(self, x: Tensor) -> Tensor:
    """Modules in a Python list: torch does not register them, the forward runs them all the same."""
    for layer in self.layers:
        x = layer(x)
    return self.fc(x)


@case((4,))
class Unregistered(nn.Module):
    """Layers and parameters in every kind of place that torch does not register, some beside registered ones."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.block = PlainList()
        self.by_name = OrderedDict(first=[nn.Linear(4, 4)], second=(nn.BatchNorm1d(4),))
        self.queue = deque([nn.Linear(4, 4), self.fc])
        self.unordered = {nn.PReLU()}
        self.__dict__["hidden"] = nn.Linear(4, 4)
        self.scales = [nn.Parameter(torch.ones(4)), self.fc.bias]
        self.shifts = {"one": nn.Parameter(torch.zeros(4)), "fixed": nn.Parameter(torch.zeros(4), False)}
        self.tied = [self.hidden.weight]

    def forward(self, x: Tensor) -> Tensor:
        for layer in (*self.by_name["first"], *self.by_name["second"], *self.queue, *self.unordered, self.hidden):
            x = layer(x) @ self.tied[0]
        return self.block(x) * self.scales[0] + self.shifts["one"] + self.shifts["fixed"]


@case((4,), opaque="torchsummary gives no row to a module that no module holds")
class MadeInForward(Fc):
    def forward(self, x: Tensor) -> Tensor:
        return nn.ReLU()(self.fc(x))


@case((4,), params=4 * 2 + 2)
class BuildsOnFirstCall(nn.Module):
    """Registers its only layer at the first forward, which gives its size."""

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
def user_hooks() -> nn.Module:
    """The user's own hooks change what goes in and what comes out."""
    model = _small()
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda module, args, output: torch.cat([output, output[:, :0]], 1))
    model[2].register_full_backward_hook(lambda module, grad_in, grad_out: None)
    return model


@case((4,))
@of_parts(lambda: {"body": _small()})
def Checkpointed(self, x: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)


@case((4,))
@of_parts(lambda: {"energy": nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))})
def GradientInForward(self, x: Tensor) -> Tensor:
    """A force is minus the gradient of an energy, taken inside `forward`."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
    return -gradient


@case((4,))
class FunctionalCall(Fc):
    def forward(self, x: Tensor) -> Tensor:
        doubled = {name: 2 * p for name, p in self.fc.named_parameters()}
        return torch.func.functional_call(self.fc, doubled, (x,))


_CONSTANT = torch.arange(4.0)


@case((4,))
@of_parts(lambda: {"fc": nn.Linear(4, 4), "mean": torch.rand(4), "anchors": [torch.rand(4), {"deep": torch.rand(4)}]})
def LooseTensors(self, x: Tensor) -> Tensor:
    """Tensors in plain attributes, in lists, in the module's globals, and made on the spot."""
    x = (x - self.mean) * self.anchors[0] + self.anchors[1]["deep"] + _CONSTANT
    x = x + torch.tensor([1.0, 2, 3, 4]) + torch.arange(4, device=x.device) + x.new_zeros(4)
    return self.fc(x) * torch.linspace(0, 1, x.size(1)) + torch.rand(4)
