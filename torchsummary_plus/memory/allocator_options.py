"""Options of torch's caching allocator, in the syntax of ``PYTORCH_ALLOC_CONF``.

Source: c10/core/AllocatorConfig.{h,cpp} and c10/cuda/CUDAAllocatorConfig.h of pytorch/pytorch. Options for device
memory are the same in the headers of torch 2.11, 2.12 and 2.13; after 2.11 came ``throw_on_cudamalloc_oom``, after
2.12 ``pinned_max_round_threshold_mb`` and ``pinned_max_cached_size_mb`` for host memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..data.errors import InputError, UnsupportedError, choice_error
from ..data.units import MIB, MIN_BLOCK, describe, power_of_two_below, round_up

INTERVALS = 16
"""Number of intervals of ``roundup_power2_divisions``: below 2 MiB, [2, 4) MiB, ... from 32 GiB up."""

ENVIRONMENT = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables that torch reads; only the first one set counts."""


@dataclass(frozen=True, slots=True)
class AllocatorOptions:
    """Settings of the caching allocator; the defaults are torch's.

    ``roundup_power2_divisions`` is empty or has one number per interval (0: off). Without ``max_split_bytes`` every
    block may be split; ``max_non_split_rounding_bytes`` defaults to ``large_segment_bytes``. ``ignored`` lists accepted
    options that are not modelled. Raises InputError for values that torch rejects.

    >>> AllocatorOptions(expandable_segments=True).large_segment_bytes
    20971520
    """

    expandable_segments: bool = False
    roundup_power2_divisions: tuple[int, ...] = ()
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int | None = None
    large_segment_bytes: int = 20 * MIB
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        divisions, large = self.roundup_power2_divisions, self.large_segment_bytes
        if len(divisions) not in (0, INTERVALS) or not all(n == 0 or is_power_of_two(n) for n in divisions):
            raise InputError(
                f"roundup_power2_divisions is {divisions}; accepted: {INTERVALS} numbers, each 0 or a power of 2"
            )
        if large <= 10 * MIB:
            raise InputError(f"large_segment_size_mb is {large / MIB:g}; accepted: more than 10")
        for name, value in (
            ("max_split_size_mb", self.max_split_bytes),
            ("max_non_split_rounding_mb", self.max_non_split_rounding_bytes),
        ):
            if value is not None and value < large:
                raise InputError(
                    f"{name} is {value / MIB:g}; accepted: at least {large / MIB:g} (large_segment_size_mb)"
                )

    @classmethod
    def parse(cls, text: str) -> AllocatorOptions:
        """Parse ``name:value,name:value`` as in ``PYTORCH_ALLOC_CONF``; sizes there are in MiB.

        Raises InputError for an unknown option or value, UnsupportedError for a backend other than the native one.

        >>> AllocatorOptions.parse("expandable_segments:True,max_split_size_mb:128").max_split_bytes
        134217728
        """
        fields: dict[str, object] = {}
        ignored: list[str] = []
        bare, position = re.sub(r"\s", "", text), 0
        while position < len(bare):
            match = PAIR.match(bare, position)
            if match is None:
                raise InputError(
                    f"allocator is {describe(text)}; accepted: name:value,name:value, such as expandable_segments:True"
                )
            name, value, position = match[1], match[2], match.end()
            if name in MODELLED:
                field, read = MODELLED[name]
                fields[field] = read(name, value)
            elif name in NOT_MODELLED:
                NOT_MODELLED[name](name, value)
                ignored.append(name)
            elif name != "backend":
                raise choice_error("allocator option", name, (*MODELLED, "backend", *NOT_MODELLED))
            elif value != "native":
                raise UnsupportedError(f"backend:{value} is not modelled; accepted: backend:native")
        return cls(**fields, ignored=tuple(ignored))  # type: ignore[arg-type]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> AllocatorOptions:
        """Return the options that torch would read in this process, or the defaults if no variable is set.

        Raises what :meth:`parse` raises, with the variable's name.

        >>> AllocatorOptions.from_environment({"PYTORCH_ALLOC_CONF": "max_split_size_mb:32"}).max_split_bytes
        33554432
        """
        for name in ENVIRONMENT:
            if name in environment:
                try:
                    return cls.parse(environment[name])
                except (InputError, UnsupportedError) as error:
                    cure = "to assume torch's default allocator instead, pass allocator='backend:native'"
                    raise type(error)(f"{error}. {name} is set to {describe(environment[name])}; {cure}") from error
        return cls()

    def rounded(self, nbytes: int) -> int:
        """Return a request's block size, before any larger block has to serve it.

        >>> AllocatorOptions().rounded(1_200)
        1536
        >>> AllocatorOptions.parse("roundup_power2_divisions:4").rounded(1_200 * 1024) // 1024
        1280
        """
        if self.roundup_power2_divisions:
            interval = min(max(nbytes.bit_length() - 21, 0), INTERVALS - 1)
            divisions = self.roundup_power2_divisions[interval]
            if divisions > 1 and nbytes > MIN_BLOCK * divisions:  # Up to that many steps between two powers of 2.
                return round_up(nbytes, power_of_two_below(nbytes) // divisions)
        return round_up(nbytes, MIN_BLOCK)


def is_power_of_two(number: int) -> bool:
    """Whether a number is a power of 2."""
    return number > 0 and number & (number - 1) == 0


PAIR = re.compile(r"([^,:\[\]]+):(\[[^\[\]]*\]|[^,:\[\]]+)(?:,|$)")
"""An option and its value, a list with its brackets."""


def _flag(name: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise choice_error(name, value, ("True", "False"))
    return value == "True"


def _whole(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]+", value):
        raise InputError(f"{name} is {describe(value)}; accepted: a whole number")
    return int(value)


def _fraction(name: str, value: str) -> float:
    if not re.fullmatch(r"0*(0|1|0?\.[0-9]+|1\.0*)", value):
        raise InputError(f"{name} is {describe(value)}; accepted: a number from 0 to 1")
    return float(value)


def _mebibytes(name: str, value: str) -> int:
    return _whole(name, value) * MIB


def _divisions(name: str, value: str) -> tuple[int, ...]:
    """Return one number for all intervals, or read a list ``[64:8,256:4,>:1]`` of MiB and divisions as torch does.

    The first entry also covers everything below it, ">" everything above the last; unnamed intervals in between stay
    off.
    """
    if not value.startswith("["):
        number = _whole(name, value)
        if not is_power_of_two(number):
            raise InputError(f"{name} is {number}; accepted: a power of 2")
        return (number,) * INTERVALS
    table, last, first = [0] * INTERVALS, 0, True
    for start, _, text in (entry.partition(":") for entry in value[1:-1].split(",") if entry):
        begins = 0 if start == ">" else _whole(name, start)
        if start != ">" and not is_power_of_two(begins):
            raise InputError(f"{name} has an interval at {begins} MiB; accepted: powers of 2")
        number = _whole(name, text)
        if start == ">":
            table[last + 1 :] = [number] * (INTERVALS - last - 1)
            continue
        last = min(begins.bit_length() - 1, INTERVALS - 1)
        if first:
            table[:last] = [number] * last
        table[last], first = number, False
    return tuple(table)


Reader = Callable[[str, str], object]
"""Reads an option's name and value; raises InputError for an invalid value."""

MODELLED: dict[str, tuple[str, Reader]] = {
    "expandable_segments": ("expandable_segments", _flag),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "max_split_size_mb": ("max_split_bytes", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mebibytes),
    "large_segment_size_mb": ("large_segment_bytes", _mebibytes),
}
"""Option -> the field it sets and its reader."""

NOT_MODELLED: dict[str, Reader] = {
    "garbage_collection_threshold": _fraction,
    "graph_capture_record_stream_reuse": _flag,
    "per_process_memory_fraction": _fraction,
    "pinned_free_catch_all": _flag,
    "pinned_max_cached_size_mb": _whole,
    "pinned_max_round_threshold_mb": _whole,
    "pinned_num_register_threads": _whole,
    "pinned_reserve_segment_size_mb": _whole,
    "pinned_use_background_threads": _flag,
    "pinned_use_cuda_host_register": _flag,
    "release_lock_on_cudamalloc": _flag,
    "throw_on_cudamalloc_oom": _flag,
}
"""Accepted and ignored. Host memory, locks and graphs do not affect device memory, and a memory fraction is the
caller's limit; ``garbage_collection_threshold`` only acts under such a fraction, by freeing cached segments early."""
