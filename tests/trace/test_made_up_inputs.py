"""Integer inputs given by size are zeros, and errors that depend on their values say so."""

import pytest
import torch
from torch import nn

from tests.parts import of_parts
from tests.told import Told
from torchsummary_plus import estimate_memory, summary


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.square().sum()


@of_parts(lambda is_packed: {"embedding": nn.Embedding(10, 16), "is_packed": is_packed})
def Kept(self, tokens: torch.Tensor) -> torch.Tensor:
    """Embeds tokens and keeps those above a number, or packs them by lengths that the tokens give."""
    inner = self.embedding(tokens)
    if self.is_packed:
        lengths = tokens.clamp(1, 5).amax(1)
        return nn.utils.rnn.pack_padded_sequence(inner, lengths, batch_first=True, enforce_sorted=False).data
    return inner[tokens > 4]


@pytest.mark.parametrize("is_packed", [False, True])
def test_sizes_that_come_from_made_up_inputs_are_said(is_packed: bool) -> None:
    made_up = estimate_memory(Kept(is_packed), (5,), batch_size=3, dtypes=[torch.long], loss=loss)
    estimate = estimate_memory(Kept(is_packed), input_data=torch.full((3, 5), 9), loss=loss)
    told = [line.rpartition(": ")[2] for line in made_up.assumptions]
    assert told == ["answered as if integer inputs were all zeros; pass real inputs as input_data="] * len(told) != []
    assert estimate.assumptions == ()
    assert estimate.peak_bytes > made_up.peak_bytes


@of_parts(lambda told: {"told": told})
def Unwritten(self, x: torch.Tensor) -> torch.Tensor:
    """Reads tensors that nothing has written to, after others have left their values in that memory."""
    used = [torch.full((1000,), 7) for _ in range(50)]
    del used
    for fresh in (torch.empty(1000, dtype=torch.long), torch.ones(1000, dtype=torch.long).new_empty(1000)):
        self.told.put(fresh.abs().sum().item())
    return x


def test_what_nothing_has_written_to_is_zero() -> None:
    told = Told()
    summary(Unwritten(told), (4,), 2, run="fake", verbose=0)
    assert told.all() == [0, 0]
