"""`max_context` and `estimate_memory(mode="generate")`: the memory of generating text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..data.answers import Printed, answer_lines, caveats
from ..data.arguments import GENERATE, integer, names_cures
from ..data.memory_records import MemoryLog, StepInfo
from ..memory.capacity import LARGEST_BATCH, Search, next_words, peak_words
from ..memory.estimate import least, room_of_log
from ..memory.gpus import parse_memory
from ..results.memory_estimate import MemoryEstimate
from ..step.generation import SKIPPED, as_choice, generation_step, skips_tokens
from ..table.inputs import make_example
from .other_tools import FOR_CONTEXTS
from .public import progress_line, public
from .step_request import INFERENCE, StepOptions, StepRequest, options_to_fit, required

SKIPPED_BAND = 0.04  # The largest relative error observed when tokens were skipped, 3.7 % for a tiny model, rounded up.

FORMULA_BAND = 0.25
"""For caches sized by formula: the share that other kernels may allocate in addition. Chosen, not measured."""

EXISTING = ("parameters", "buffers", "inputs")  # Kinds that generation does not allocate.


@dataclass(frozen=True, slots=True, repr=False)
class ContextLimit(Printed):
    """The longest context that fits (tokens of prompt and answer), its peak and that of one token more, in bytes.

    ``context`` is 0 if not even a prompt of one token fits, and ``LARGEST_BATCH`` if that many tokens fit, or more.
    ``position_limit`` is the longest context that the model supports (None if its configuration states none).
    ``traced`` lists the lengths of the prompts that were traced. ``cuda_context_bytes``, an upper bound, are the part
    of ``memory_bytes`` that is reserved for the CUDA context. ``peak_range``, ``unknown`` and ``assumptions`` are those
    of the estimate at that context.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tokens = {"vocab_size": 9, "bos_token_id": 0, "eos_token_id": 1}
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, n_positions=64, **tokens))
    >>> limit = max_context(model, "8GiB", progress=False)
    >>> limit.is_beyond_positions, limit.peak_bytes <= limit.memory_bytes
    (True, True)
    """

    context: int
    batch_size: int
    new_tokens: int
    peak_bytes: int
    next_peak_bytes: int
    position_limit: int | None
    traced: tuple[int, ...]
    memory_bytes: int
    cuda_context_bytes: int
    info: StepInfo
    peak_range: tuple[int, int]
    unknown: tuple[tuple[str, int], ...]
    assumptions: tuple[str, ...]

    @property
    def is_beyond_positions(self) -> bool:
        """Whether more tokens fit than the model supports."""
        return self.position_limit is not None and self.context > self.position_limit

    def __str__(self) -> str:
        beyond = f" (the model supports {self.position_limit:,})" if self.is_beyond_positions else ""
        usable = self.memory_bytes - self.cuda_context_bytes
        figures = [
            (f"Peak at {self.context:,}", peak_words(self.peak_bytes, usable, *self.peak_range)),
            ("Peak at one more", next_words(self.next_peak_bytes, usable)),
        ]
        return answer_lines(
            f"Longest context: {self.context:,} tokens{beyond} with a batch of {self.batch_size:,}",
            f"{self.info.step}: {self.info.model}, {self.info.settings}",
            figures,
            caveats(self.unknown, self.assumptions),
        )


class GenerationRequest(StepRequest):
    """A request for generating text after a prompt of some tokens, by a model or one that a builder makes."""

    def __init__(
        self, prompt: int, batch_size: int, new_tokens: int, cache: str, cache_dtype: Any, options: StepOptions,
        model: Any, rank: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        options.refuse_compiled("for a generation")
        choice, new_tokens = as_choice(cache, cache_dtype), integer("new_tokens", new_tokens, 1)
        self.prompt, self.choice, self.new_tokens = prompt, choice, new_tokens
        batch = integer("batch_size", batch_size, 1)
        tokens = {name: torch.ones(batch, prompt, dtype=torch.long) for name in ("input_ids", "attention_mask")}
        own = {**INFERENCE, "train_step": generation_step(new_tokens, choice), "keep_output": False, "steps": 1}
        super().__init__(model, required(make_example(None, batch, None, tokens)), replace(options, **own), rank)

    def trace(
        self, batch: int, tick: Callable[[str], None], highest_draw: bool = False, as_source: bool = False
    ) -> MemoryLog:
        """Trace generating after the prompt."""
        words = f"trying a prompt of {self.prompt:,} tokens"  # Rather than which batch is being tried.
        log = super().trace(batch, lambda _: tick(words), highest_draw)
        if skips_tokens(self.tree.modules[0], self.new_tokens, self.choice):
            log = _with_band(log, SKIPPED, SKIPPED_BAND)
        return _with_band(log, self.choice.formula, FORMULA_BAND) if self.choice.formula else log

    def estimate(self, batch: int, log: MemoryLog) -> MemoryEstimate:
        """Build the estimate of a log, which names the prompt, the new tokens and the cache."""
        result, count = super().estimate(batch, log), self.new_tokens
        words = f"prompt of {self.prompt:,}, {count:,} new token{'' if count == 1 else 's'}, {self.choice}"
        return replace(result, info=replace(result.info, mode=GENERATE, train_step=words, new_tokens=count))


def _with_band(log: MemoryLog, note: str, band: float) -> MemoryLog:
    """Return a log with a further assumption, and an error band on everything whose size depends on the tokens."""
    storages = tuple(
        spec if spec.kind in EXISTING else replace(spec, band=max(spec.band, band)) for spec in log.storages
    )
    return replace(log, storages=storages, assumptions=(note, *log.assumptions))


@public
@names_cures(FOR_CONTEXTS)
def max_context(
    model: nn.Module,
    memory: int | float | str | None = None,
    batch_size: int = 1,
    *,
    gpu: str | None = None,
    new_tokens: int = 2,
    cache: str = "dynamic",
    cache_dtype: Any = None,
    device: Any = "cuda",
    autocast: Any = None,
    allocator: str | None = None,
    cudnn: str = "auto",
    progress: bool = True,
    options: StepOptions | None = None,
) -> ContextLimit:
    """Return the longest context that a transformers model can generate with in ``memory``.

    The context is a prompt and ``new_tokens`` after it, for each of ``batch_size`` sequences; ``memory`` is bytes,
    "24GiB" (the default) or a GPU's name, which can be given as ``gpu`` too. Traces of short prompts are extrapolated
    as :func:`max_batch_size` does for batches; the answer and the next prompt are always traced. Options of an
    optimizer or a loss have no effect. Raises :class:`InputError`, or :class:`UnsupportedError` for a model that
    does not generate.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tokens = {"vocab_size": 9, "bos_token_id": 0, "eos_token_id": 1}
    >>> config = GPT2Config(n_layer=1, n_embd=32, n_head=2, n_positions=64, **tokens)
    >>> limit = max_context(GPT2LMHeadModel(config), "8GiB", progress=False)
    >>> limit.context > 1_000_000, limit.position_limit
    (True, 64)
    """
    own = {"autocast": autocast, "allocator": allocator, "cudnn": cudnn}
    settings, memory = options_to_fit("max_context", options, {}, memory, device, gpu, **own)

    def request(prompt: int) -> GenerationRequest:
        return GenerationRequest(prompt, batch_size, new_tokens, cache, cache_dtype, settings, model)

    first = request(1)
    with progress_line(progress) as tick:
        search = Search(
            lambda prompt: request(prompt).trace(batch_size, tick, highest_draw=True),
            *first.limits(memory),
            proves=True,
        )
        tokens = search.run()
        counts = (max(count, search.smallest) for count in (tokens, tokens + 1))
        fitting, beyond = (request(count).estimate(batch_size, least(search.log(count))) for count in counts)
    config = getattr(model, "config", None)
    return ContextLimit(
        context=0 if not tokens else min(tokens, LARGEST_BATCH) + new_tokens,
        batch_size=batch_size,
        new_tokens=new_tokens,
        peak_bytes=fitting.peak_bytes if tokens else 0,
        next_peak_bytes=beyond.peak_bytes,
        position_limit=getattr(config, "max_position_embeddings", None),
        traced=tuple(sorted(search.logs)),
        memory_bytes=parse_memory(memory),
        cuda_context_bytes=parse_memory(memory) - room_of_log(fitting.log, first.backend, memory),
        info=fitting.info,
        peak_range=fitting.peak_range if tokens else (0, 0),
        unknown=fitting.unknown,
        assumptions=fitting.assumptions,
    )
