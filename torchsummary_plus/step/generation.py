"""Generation by a transformers model as a step: its own ``generate``, greedy, without an end token."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..data.errors import UnsupportedError
from ..data.integers import integer
from .caches import STATIC, CacheChoice, cache_maker, kept_shapes

WHOLE = 20_000
"""Module calls up to which every token is generated; beyond, only the first two and the last two are."""

SKIPPED = "only the first two and the last two tokens were generated; in between, the cache grew by its own update()"


def generation_step(model: Any, new_tokens: int, cache: CacheChoice) -> Callable[..., None]:
    """Return a step that generates ``new_tokens`` from ``input_ids`` with a kind of cache.

    Raises :class:`InputError` for an invalid number, :class:`UnsupportedError` for a model without ``generate`` or such
    a cache.
    """
    new_tokens = integer("new_tokens", new_tokens, 1)
    if not callable(getattr(model, "generate", None)) or not hasattr(model, "generation_config"):
        raise UnsupportedError(
            f"{type(model).__name__} has no generate(), which only transformers' generative models have; for "
            "a generation "
            'loop of your own, pass mode="eval" and train_step='
        )
    skips = skips_tokens(model, new_tokens, cache)
    cache_maker(model, cache, 1)

    def step(model: Any, input_ids: Tensor, attention_mask: Tensor) -> None:
        own_cache = cache_maker(model, cache, input_ids.shape[1] + new_tokens)()
        options = {} if own_cache is None else {"past_key_values": own_cache}
        del own_cache
        if skips:
            _first_and_last(model, input_ids, attention_mask, new_tokens, options)
            return
        with _set_to(model, new_tokens, cache.name):
            model.generate(input_ids, attention_mask=attention_mask, **options)

    return step


def skips_tokens(model: Any, new_tokens: int, cache: CacheChoice) -> bool:
    """Whether a step generates only the first two tokens and the last two: if there are many and the cache grows."""
    is_long = new_tokens > 4 and new_tokens * sum(1 for _ in model.modules()) > WHOLE
    return is_long and cache.name != STATIC and not getattr(model.config, "is_encoder_decoder", False)


def _first_and_last(
    model: Any, input_ids: Tensor, attention_mask: Tensor, new_tokens: int, options: dict[str, Any]
) -> None:
    """Generate two tokens, grow the cache by its own ``update`` as if by the others, and generate the last two.

    As in one ``generate``, the last token is generated while the logits of the one before are alive. ``options`` has
    the cache, if it is not the model's own. A model without keys and values, whose states do not grow, generates all
    tokens.
    """
    with _set_to(model, 2, "dynamic", return_dict_in_generate=True):
        cache = model.generate(input_ids, attention_mask=attention_mask, **options).past_key_values
    options.clear()
    growing = [(number, layer) for number, layer in enumerate(cache.layers) if kept_shapes(layer)]
    for number, layer in growing:
        _grow(cache, number, layer, new_tokens - 4)
    if not growing:
        del cache
        with _set_to(model, new_tokens, "dynamic"):
            model.generate(input_ids, attention_mask=attention_mask)
        return
    batch, length = input_ids.shape[0], input_ids.shape[1] + new_tokens - 2
    with _set_to(model, 2, "dynamic"):
        model.generate(
            input_ids.new_ones(1, 1).expand(batch, length),
            attention_mask=attention_mask.new_ones(1, 1).expand(batch, length),
            past_key_values=cache,
        )


def _grow(cache: Any, number: int, layer: Any, missing: int) -> None:
    """Append ``missing`` tokens to a layer of a cache.

    A layer with a sliding window grows until the window is full, and by one token more; after that its size is
    constant.
    """
    window = getattr(layer, "sliding_window", None)
    if window is None:
        _read(cache, number, layer, missing)
        return
    room = min(missing, max(0, window - 1 - kept_shapes(layer)[0][-2]))
    _read(cache, number, layer, room)
    if missing > room:
        _read(cache, number, layer, 1)
        layer.cumulative_length += missing - room - 1


def _read(cache: Any, number: int, layer: Any, count: int) -> None:
    if count:
        shapes = [(*shape[:-2], count, shape[-1]) for shape in kept_shapes(layer)]
        dtype = getattr(layer, "dtype", layer.keys.dtype)  # Transformers 5.24 has only the keys' own.
        keys, values = (torch.zeros(shape, dtype=dtype, device=layer.device) for shape in shapes)
        cache.update(keys, values, number)


@contextmanager
def _set_to(model: Any, new_tokens: int, cache: str, **options: Any) -> Iterator[None]:
    """Inside the block, have the model generate exactly ``new_tokens`` tokens, whatever they are."""
    own = model.generation_config
    config = copy.deepcopy(own)
    for name, value in {
        "max_new_tokens": new_tokens, "min_new_tokens": None, "max_length": None, "min_length": 0, "do_sample": False,
        "num_beams": 1, "eos_token_id": None, "pad_token_id": 0, "use_cache": True, "disable_compile": True,
        "cache_implementation": STATIC if cache == STATIC else None, "output_scores": False, **options,
    }.items():  # fmt: skip
        setattr(config, name, value)
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = own
