"""The zoo: where parameters live, how they are computed, stored and initialised."""

import warnings

import torch
import torch.nn.utils.parametrizations as P
from torch import Tensor, nn

from tests.parts import of_parts
from tests.trace.zoo_case import case


@case((4,))
@of_parts(lambda: {"scale": nn.Parameter(torch.rand(4)), "fc": nn.Linear(4, 2)})
def RootParameter(self, x: Tensor) -> Tensor:
    return self.fc(x * self.scale)


@case((4,))
class Unused(nn.Module):
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
def empty_sequential() -> nn.Module:
    return nn.Sequential()


@case((4,))
def parametrized() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), P.orthogonal(nn.Linear(4, 4)), nn.ReLU())


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


@case((3, 8, 8), params=(3 * 4 * 9 + 4) + 2 * 4 + (4 * 36 * 5 + 5))
def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(5))


@case((3, 8, 8), fake_only="nothing to compute with")
def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
