"""The scratchpad of oneDNN's matrix products in half precision on AVX-512, as its kernels divide them into blocks.

oneDNN 3.12: src/cpu/x64/matmul/brgemm_matmul_utils.cpp (``compute_blocking_heuristic_avx512``, ``init_aux_values``,
``init_scratchpad``), src/cpu/matmul/gemm_based_common.hpp. Scores are compared in float32 as there.
"""

from __future__ import annotations

from ctypes import c_float
from dataclasses import dataclass
from functools import cache

from .description import booked, ceil_div, up

FLOAT = 4
BATCH_ELEMENT = 40
"""Bytes of ``brgemm_batch_element_t``, of which each thread has 16 for each block of a batch."""
TILES = 4096
"""Bytes of the four tiles of a result."""
COLUMNS = 64
"""Columns of the second matrix, and of the result, in a block."""
LINE = 64
"""Bytes of a line of the cache."""


@dataclass(frozen=True, slots=True)
class Product:
    """``batch`` products of m x k and k x n; ``turned``: whether the columns of the first or the second one run on.

    ``itemsize`` is that of the copies that the kernel reads.
    """

    batch: int
    m: int
    n: int
    k: int
    turned: tuple[bool, bool]
    itemsize: int


def by_gemm(product: Product, threads: int) -> int:
    """Without instructions for the dtype: the result of each thread's share in float32."""
    whole = up(product.m * product.n, LINE)
    share = ceil_div(product.batch * product.m * product.n, threads)
    if share >= product.n:
        share = min(product.m * product.n, share // product.n * product.n)
    return booked(max(whole, up(share, LINE) * threads) * FLOAT)


@cache
def by_blocks(product: Product, threads: int, copies_a: bool) -> int:
    """Blocks of both matrices in the kernel's layout, and of the result in float32, for each thread.

    ``copies_a``: the first matrix is copied whatever its layout, as it is converted.
    """
    copies_a = copies_a or _is_turned(product) or _prefers_copy(product)
    rows, columns, chunk, depth, shares = _blocks(product, threads, copies_a)
    result = FLOAT * columns * rows * (chunk if depth < product.k else 1)
    if shares > 1:
        result = FLOAT * product.n * product.m
    width = up(depth, LINE // product.itemsize)
    if width >= 512 and width & (width - 1) == 0:
        width += LINE // product.itemsize
    first = product.itemsize * rows * width if copies_a else 0
    second = product.itemsize * COLUMNS * up(depth, granule(product))
    parts = (16 * BATCH_ELEMENT, first, second, result)
    return sum(booked(threads * part) for part in parts)


def about_by_tiles(product: Product, threads: int) -> int:
    """An estimate where matrix tiles multiply, whose blocks depend on the caches (``amx_blocking_heuristics.cpp``).

    Of 450 products of many shapes half take within a factor of 1.4 of it, and four of five within a factor of 2.
    """
    depth = product.k + 24
    second = depth * min(product.n + 24, 64 if product.turned[1] else 128)
    first = depth * min(product.m, 256) if product.turned[0] else 0
    return threads * (16 * BATCH_ELEMENT + TILES + product.itemsize * (first + second))


def granule(product: Product) -> int:
    """Rows of the second matrix that lie together: 16, or 16 pairs of numbers of 2 bytes."""
    return 64 // product.itemsize if product.itemsize == 2 else 16


def _is_turned(product: Product) -> bool:
    return product.turned[0] and product.m > 1


def _prefers_copy(product: Product) -> bool:
    """Rows so far apart by a power of two that they would share lines of the cache."""
    depth = product.k
    return product.itemsize == 2 and product.m >= 1024 and depth >= 4096 and depth & (depth - 1) == 0


def _blocks(product: Product, threads: int, copies_a: bool) -> tuple[int, int, int, int, int]:
    """Rows and columns of a block, blocks of columns in a chunk, its depth, and threads that share the depth."""
    m, n, k = product.m, product.n, product.k
    columns = min(COLUMNS, n)
    chunks = ceil_div(n, columns)
    depth = min(k, 1024 if k > 1024 and not product.turned[0] else 512)
    most, least, shares = min(256, m), min(32, m), 1
    if threads > product.batch * chunks:
        least = min(m, 16)
        if product.batch == 1 and product.turned[0] and k & (k - 1) == 0 and k >= 2048:
            shares = min(threads, 4)
    best, lowest = (least, columns, 1, depth, 1), 1.0
    deep = shares > 1
    for share in range(shares, 0, -1):
        found = False
        for chunk in range(min(16 if copies_a else 1, chunks), 0, -1):
            for rows in range(most, least - 1, -1):
                score = _imbalance(product, threads, (rows, columns, chunk, depth, share))
                work = product.batch * ceil_div(m, rows) * ceil_div(n, columns * chunk)
                busy = threads // share
                if work < 3 * busy and work % busy and not deep:
                    continue
                if score < lowest:
                    best, lowest, found = (rows, columns, chunk, depth, share), score, True
        if not found:
            candidate = (least, columns, 1, depth, share)
            score = _imbalance(product, threads, candidate)
            if score < lowest:
                best, lowest = candidate, score
    return best


def _imbalance(product: Product, threads: int, blocks: tuple[int, int, int, int, int]) -> float:
    rows, columns, chunk, depth, share = blocks
    workers = threads // share
    across = ceil_div(product.n, columns)
    work = ceil_div(product.m, rows) * ceil_div(product.n, columns * chunk) * product.batch
    terms = (
        _uneven(work, workers),
        _single((rows * ceil_div(product.m, rows)) % product.m / product.m),
        _single((ceil_div(across, chunk) * chunk - across) / across),
        _single((threads - workers * share) / threads),
        _uneven(product.k, share * depth),
    )
    score = 0.0
    for term in terms:
        score = _single(score + term)
    return _single(score / 5)


def _uneven(work: int, block: int) -> float:
    rest = work % block
    return _single((block - rest if work < block else min(block - rest, rest)) / block)


def _single(value: float) -> float:
    """A number as float32 holds it."""
    return c_float(value).value
