"""Generation by a transformers model as a step: its own ``generate``, greedy, without an end token.

Its cache of keys and values is transformers' own, or one whose layout is known but that needs other kernels. Sources:
transformers' cache_utils.py (``QuantizedCache``, ``QuantizedLayer``); for blocks, Kwon et al. 2023 (vLLM), section 4,
and its hybrid allocator for sliding windows; for groups, optimum-quanto's ``MaxOptimizer`` and ``quantize_weight``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.errors import InputError, UnsupportedError, choice_error, need_extra
from ..data.units import describe

WHOLE = 20_000
"""Module calls up to which every token is generated; beyond, only the first two and the last two are."""

SKIPPED = "only the first two and the last two tokens were generated; in between, the cache grew by its own update()"


def generation_step(new_tokens: int, cache: CacheChoice) -> Callable[..., None]:
    """Return a step that generates ``new_tokens`` from ``input_ids`` with a kind of cache.

    It raises :class:`UnsupportedError` for a model without ``generate`` or such a cache.
    """

    def step(model: Any, input_ids: Tensor, attention_mask: Tensor) -> None:
        if not callable(getattr(model, "generate", None)) or not hasattr(model, "generation_config"):
            raise UnsupportedError(
                f"{type(model).__name__} has no generate(), which only transformers' generative models have; for a "
                'generation loop of your own, pass mode="eval" and train_step='
            )
        made = own_cache(model, cache, input_ids.shape[1] + new_tokens)
        options = {} if made is None else {"past_key_values": made}
        del made
        if skips_tokens(model, new_tokens, cache):
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

    The last token is generated while the logits of the one before are alive. ``options`` has the cache, if it is not
    the model's own. A model whose states do not grow generates all tokens.
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
    """Append ``missing`` tokens to a cache's layer; a sliding window grows until it is full, and by one token more."""

    def append(count: int) -> None:
        if count:
            shapes = [(*shape[:-2], count, shape[-1]) for shape in kept_shapes(layer)]
            dtype = getattr(layer, "dtype", layer.keys.dtype)  # Transformers 5.24 has only the keys' own.
            keys, values = (torch.zeros(shape, dtype=dtype, device=layer.device) for shape in shapes)
            cache.update(keys, values, number)

    window = getattr(layer, "sliding_window", None)
    if window is None:
        append(missing)
        return
    room = min(missing, max(0, window - 1 - kept_shapes(layer)[0][-2]))
    append(room)
    if missing > room:
        append(1)
        layer.cumulative_length += missing - room - 1


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


DYNAMIC, STATIC, QUANTIZED, PAGED = "dynamic", "static", "quantized", "paged"
NAMES = (DYNAMIC, STATIC, QUANTIZED, "paged:16 (or another block size)")
GROUP = 64
"""Elements that share a scale: the default of transformers' ``QuantizedLayer``."""

BITS = {"int8": 8, "int4": 4, "int2": 2}
FP8 = "fp8"

PAGES = (
    "the cache is sized by formula: each layer allocates the blocks that a sequence's tokens, or its window, fill; "
    "kernels are assumed to read them in place"
)
GROUPS = f"the cache is sized by formula: packed integers, with a scale and a shift per {GROUP} elements"


@dataclass(frozen=True)
class CacheChoice:
    """A kind of cache: its name, its tokens per block and the dtype of its contents."""

    name: str
    block: int = 0
    dtype: str | None = None

    @property
    def formula(self) -> str:
        """The assumption for a cache that is sized by formula; "" for transformers' own classes."""
        return PAGES if self.name == PAGED else GROUPS if self.dtype in BITS else ""

    def __str__(self) -> str:
        blocks = f" in blocks of {self.block:,}" if self.block else ""
        return f"{self.name} cache{blocks}{f' of {self.dtype}' if self.dtype else ''}"


def as_choice(cache: Any, dtype: Any) -> CacheChoice:
    """Return a kind of cache by its name and dtype. Raises :class:`InputError`.

    >>> str(as_choice("paged:16", None)), str(as_choice("quantized", "int4"))
    ('paged cache in blocks of 16', 'quantized cache of int4')
    """
    name, _, block = str(cache).partition(":")
    if isinstance(dtype, torch.dtype):
        dtype = {torch.float8_e4m3fn: FP8}.get(dtype, dtype)
    if name == PAGED and block.isdigit() and 1 <= int(block) <= 1 << 20:
        if dtype not in (None, FP8):
            raise choice_error('cache_dtype of cache="paged"', dtype, [None, FP8])
        return CacheChoice(PAGED, int(block), dtype)
    if cache not in (DYNAMIC, STATIC, QUANTIZED):
        raise choice_error("cache", cache, NAMES)
    if cache == QUANTIZED:
        if dtype not in (None, FP8, *BITS):
            raise choice_error('cache_dtype of cache="quantized"', dtype, [FP8, *BITS])
        return CacheChoice(QUANTIZED, dtype=dtype or "int4")
    if dtype is not None:
        raise InputError(
            f"cache_dtype is {describe(dtype)}, but cache={describe(cache)} has the model's dtype; pass cache_dtype "
            'only with cache="quantized" or "paged:16"'
        )
    return CacheChoice(cache)


def own_cache(model: Any, choice: CacheChoice, tokens: int) -> Any:
    """Make a model's cache for ``tokens``; None if ``generate`` makes it itself.

    Raises :class:`UnsupportedError` if the model, or the installed transformers, has no such cache.
    """
    if choice.name in (DYNAMIC, STATIC):
        return None
    caches = need_extra("transformers.cache_utils", "transformers")
    supports = getattr(model, "_supports_default_dynamic_cache", lambda: True)()
    if getattr(model.config, "is_encoder_decoder", False) or not supports:
        name = type(model).__name__
        raise UnsupportedError(f"{name} makes its own kind of cache; accepted: cache='dynamic' or 'static'")
    config = model.config.get_text_config(decoder=True)
    try:
        if choice.name == PAGED:
            return _paged(caches, config, choice, tokens)
        if choice.dtype == FP8:
            return caches.QuantizedCache(FP8, copy.deepcopy(config))
        kinds = {type(layer).__name__ for layer in caches.DynamicCache(config=config).layers} - {"DynamicLayer"}
        if kinds:
            raise ValueError(f"all layers need full attention, but some are {', '.join(sorted(kinds))}")
        return caches.Cache(layers=[_grouped(caches, choice)() for _ in range(int(config.num_hidden_layers))])
    except (ValueError, AttributeError, TypeError) as error:
        name = type(model).__name__
        raise UnsupportedError(f"the installed transformers has no {choice} for {name}: {error}") from error


def _paged(caches: Any, config: Any, choice: CacheChoice, tokens: int) -> Any:
    """Return a model's own cache with keys and values in blocks, all allocated at once; recurrent states stay."""
    block, dtype = choice.block, torch.float8_e4m3fn if choice.dtype == FP8 else None

    class Blocks(caches.DynamicLayer):  # type: ignore[misc]
        def __init__(self, own: Any) -> None:
            super().__init__()
            self.own = own
            self.is_sliding = own.is_sliding
            self.window = window = getattr(own, "sliding_window", None)
            whole = -(-tokens // block)
            self.slots = block * (whole if window is None else min(whole, -(-window // block) + 1))
            self.length = 0

        def lazy_initialization(self, keys: Tensor, values: Tensor) -> None:
            self.dtype, self.device = keys.dtype, keys.device
            self.keys, self.values = (
                tensor.new_empty(*tensor.shape[:2], self.slots, tensor.shape[-1], dtype=dtype or tensor.dtype)
                for tensor in (keys, values)
            )
            self.is_initialized = True

        def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(keys, values)
            new = keys.shape[-2]
            self.length += new
            if self.window is not None:
                self.own.cumulative_length = self.length
            stored = min(new, self.slots)
            place = 0 if self.window is not None and stored > 1 else (self.length - new) % self.slots
            for pool, new_states in ((self.keys, keys), (self.values, values)):
                pool[:, :, place : place + stored] = new_states[:, :, -stored:]
            if self.length == new:  # Attention over the prompt reads the new keys and values themselves.
                return keys, values
            visible = self.length if self.window is None else min(self.length, self.window - 1 + new, self.slots)
            return self.keys[:, :, :visible].to(keys.dtype), self.values[:, :, :visible].to(values.dtype)

        def get_seq_length(self) -> int:
            return self.length

        def get_mask_sizes(self, queries: int | Tensor) -> tuple[int, int]:
            """Return the length and offset of the mask; before transformers 5, ``queries`` are the positions."""
            if self.window is None:
                return self.length + (queries if isinstance(queries, int) else queries.shape[0]), 0
            sizes: tuple[int, int] = self.own.get_mask_sizes(queries)
            return sizes

    cache = caches.DynamicCache(config=config)
    if not cache.layers:
        cache.layers = [caches.DynamicLayer() for _ in range(config.num_hidden_layers)]
    for number, own in enumerate(cache.layers):
        if type(own) in (caches.DynamicLayer, caches.DynamicSlidingWindowLayer):
            cache.layers[number] = Blocks(own)
    return cache


def _grouped(caches: Any, choice: CacheChoice) -> Any:
    """Return transformers' quantised layer class with the groups of a library that need not be installed.

    Sizes count, not contents: of the packed integers a part stands for all of them.
    """
    bits = BITS[str(choice.dtype)]

    class Groups(caches.QuantizedLayer):  # type: ignore[misc]
        def _quantize(self, tensor: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor, torch.Size]:
            groups = tensor.reshape(-1, GROUP) if tensor.numel() % GROUP == 0 else tensor.reshape(1, -1)
            low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
            scale = ((high - low) / (2**bits - 1)).clamp(min=torch.finfo(tensor.dtype).tiny)
            codes = ((groups - low) / scale).round().to(torch.uint8).flatten()
            return codes[: -(-codes.numel() * bits // 8)].clone(), scale, low, tensor.shape

        def _dequantize(self, stored: tuple[Tensor, Tensor, Tensor, torch.Size]) -> Tensor:
            codes, scale, low, shape = stored
            groups = codes.repeat_interleave(8 // bits)[: shape.numel()].reshape(scale.shape[0], -1)
            return (groups * scale + low).reshape(shape)

    return Groups


def kept_shapes(layer: Any) -> list[torch.Size]:
    """Return the shapes of a layer's keys and values, quantised or not; empty for a layer without these."""
    names = ("_quantized_keys", "_quantized_values") if hasattr(layer, "_quantized_keys") else ("keys", "values")
    sizes = []
    for name in names:
        stored = getattr(layer, name, None)
        if isinstance(stored, tuple):
            stored = next((item for item in reversed(stored) if isinstance(item, torch.Size)), stored[0])
        if isinstance(stored, (Tensor, torch.Size)):
            sizes.append(stored.shape if isinstance(stored, Tensor) else stored)
    return sizes
