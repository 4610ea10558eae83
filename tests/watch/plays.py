"""Random operations on tensors, followed by a tracker, in one thread and in several."""

import gc
import io
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from torchsummary_plus import MemTracker
from torchsummary_plus.results.track_report import TrackPoint

DTYPES = [torch.int16, torch.bool, torch.float8_e4m3fn, torch.complex64, torch.float32, torch.bfloat16, torch.int64]


def quiet(detail: bool = True) -> MemTracker:
    return MemTracker(detail, device="cpu", stream=io.StringIO())


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """The reference: the bytes of the distinct storages under some tensors."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def changed(point: TrackPoint) -> int:
    return sum(group.nbytes for group in point.appeared) - sum(group.nbytes for group in point.gone)


class Play:
    """Random dealings with tensors, and the tensors that are left."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.tensors: list[torch.Tensor] = [torch.zeros(8)]

    def __call__(self) -> None:
        self.choose.choice(
            [self.allocate, self.view, self.free, self.resize, self.refill, self.tie, self.swap, self.grad]
        )()

    def tensor(self) -> torch.Tensor:
        return self.choose.choice(self.tensors)

    def allocate(self) -> None:
        self.tensors.append(torch.zeros(self.choose.randrange(1, 400), dtype=self.choose.choice(DTYPES)))

    def view(self) -> None:
        self.tensors.append(self.tensor().detach()[:1])

    def free(self) -> None:
        if len(self.tensors) > 1:
            self.tensors.pop(self.choose.randrange(len(self.tensors)))

    def resize(self) -> None:
        self.tensors.append(torch.zeros(3).resize_(self.choose.randrange(1, 500)))

    def refill(self) -> None:
        storage = self.tensor().untyped_storage()
        nbytes = storage.nbytes()
        storage.resize_(0)
        storage.resize_(nbytes + self.choose.randrange(0, 64) * 8)

    def tie(self) -> None:
        result = torch.zeros(self.choose.randrange(1, 90))
        self.tensors += [result, torch.zeros(1).set_(result)]

    def swap(self) -> None:
        tensor = torch.zeros(self.choose.randrange(1, 90))
        self.tensors += [tensor, tensor.detach()]
        tensor.data = torch.zeros(self.choose.randrange(90, 200))

    def grad(self) -> None:
        leaf = nn.Parameter(torch.zeros(self.choose.randrange(1, 90)))
        (leaf * 2).sum().backward()
        self.tensors.append(leaf)
        if self.choose.random() < 0.5 and leaf.grad is not None:
            self.tensors.append(leaf.grad)

    def bytes(self) -> int:
        grads = [t.grad for t in self.tensors if t.is_leaf and t.grad is not None]
        return storage_bytes(self.tensors + grads)


def follow_sequences(*thresholds: int) -> None:
    tracker = quiet()
    gc.set_threshold(*thresholds)
    rest = tracker.track().tensor_bytes
    for seed in range(200):
        play = Play(seed)
        for _ in range(play.choose.randrange(1, 12)):
            play()
        last, point = tracker.report().points[-1], tracker.track()
        assert point.tensor_bytes - rest == play.bytes(), seed
        assert changed(point) == point.tensor_bytes - last.tensor_bytes
    del play
    assert tracker.track().tensor_bytes == rest


def follow_threads() -> None:
    """They take turns as often as can be, so that they also do while the collector is about to begin."""
    tracker = quiet()
    gc.set_threshold(50, 3, 3)
    sys.setswitchinterval(1e-5)
    for turn in range(2):
        rest = tracker.track().tensor_bytes
        plays = [Play(10 * turn + number) for number in range(4)]
        with ThreadPoolExecutor(len(plays)) as pool:
            games = [pool.submit(lambda play=play: [play() for _ in range(150)]) for play in plays]
            while not all(game.done() for game in games):
                tracker.track()
        assert [game.exception() for game in games] == [None] * len(plays)
        gc.collect()
        assert tracker.track().tensor_bytes - rest == sum(play.bytes() for play in plays)
        del plays
        gc.collect()
        assert tracker.track().tensor_bytes == rest
