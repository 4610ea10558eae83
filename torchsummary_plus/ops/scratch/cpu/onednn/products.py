"""Scratchpad of oneDNN's half-precision matrix products on AVX-512, by their blocking.

oneDNN 3.12: src/cpu/x64/matmul/brgemm_matmul_utils.cpp (``compute_blocking_heuristic_avx512``, ``init_aux_values``,
``init_scratchpad``), src/cpu/matmul/gemm_based_common.hpp. Scores are compared in float32, as there.
"""

from __future__ import annotations

from ctypes import c_float
from dataclasses import dataclass
from functools import cache

from .....data.rounding import ceil_div, round_up
from .description import BATCH_ELEMENT, FLOAT, aligned

PRODUCTS_AT_ONCE = 16
"""Products per block of a batch, each with a ``brgemm_batch_element_t``."""
TILES = 4096
"""Bytes of a result's four tiles."""
COLUMNS = 64
"""Columns of the second matrix, and of the result, per block."""
LINE = 64
"""Bytes of a cache line."""


@dataclass(frozen=True, slots=True)
class Product:
    """``batch`` products of m x k and k x n matrices; ``turned`` says which of the two are column-major.

    ``itemsize`` is that of the kernel's copies.
    """

    batch: int
    m: int
    n: int
    k: int
    turned: tuple[bool, bool]
    itemsize: int


def by_gemm(product: Product, threads: int) -> int:
    """Return the scratch without instructions for the dtype: each thread's share of the result in float32."""
    whole = round_up(product.m * product.n, LINE)
    share = ceil_div(product.batch * product.m * product.n, threads)
    if share >= product.n:
        share = min(product.m * product.n, share // product.n * product.n)
    return aligned(max(whole, round_up(share, LINE) * threads) * FLOAT)


@cache
def by_blocks(product: Product, threads: int, copies_a: bool) -> int:
    """Return the scratch of blocked copies of both matrices and float32 blocks of the result, per thread.

    With ``copies_a`` the first matrix is copied in any layout, because it is converted.
    """
    copies_a = copies_a or _is_turned(product) or _prefers_copy(product)
    rows, columns, chunk, depth, shares = _blocks(product, threads, copies_a)
    result = FLOAT * columns * rows * (chunk if depth < product.k else 1)
    if shares > 1:
        result = FLOAT * product.n * product.m
    width = round_up(depth, LINE // product.itemsize)
    if width >= 512 and width & (width - 1) == 0:
        width += LINE // product.itemsize
    first = product.itemsize * rows * width if copies_a else 0
    second = product.itemsize * COLUMNS * round_up(depth, granule(product))
    parts = (PRODUCTS_AT_ONCE * BATCH_ELEMENT, first, second, result)
    return sum(aligned(threads * part) for part in parts)


def about_by_tiles(product: Product, threads: int) -> int:
    """Estimate the scratch with AMX tiles, whose blocking depends on the caches (``amx_blocking_heuristics.cpp``).

    Of 450 products of many shapes, half are within a factor of 1.4 and four in five within a factor of 2.
    """
    depth = product.k + 24
    second = depth * min(product.n + 24, 64 if product.turned[1] else 128)
    first = depth * min(product.m, 256) if product.turned[0] else 0
    return threads * (PRODUCTS_AT_ONCE * BATCH_ELEMENT + TILES + product.itemsize * (first + second))


def granule(product: Product) -> int:
    """Return the rows of the second matrix stored together: 16, or 16 pairs of 2-byte elements."""
    return 64 // product.itemsize if product.itemsize == 2 else 16


def _is_turned(product: Product) -> bool:
    return product.turned[0] and product.m > 1


def _prefers_copy(product: Product) -> bool:
    """Whether the row stride is a power of two so large that rows would share cache lines."""
    depth = product.k
    return product.itemsize == 2 and product.m >= 1024 and depth >= 4096 and depth & (depth - 1) == 0


def _blocks(product: Product, threads: int, copies_a: bool) -> tuple[int, int, int, int, int]:
    """Return rows and columns per block, column blocks per chunk, depth, and threads that share the depth."""
    m, n, k = product.m, product.n, product.k
    columns = min(COLUMNS, n)
    chunks = ceil_div(n, columns)
    depth = min(k, 1024 if k > 1024 and m > 1 and not product.turned[0] else 512)  # One row is read as turned.
    most, least, shares = min(256, m), min(32, m), 1
    if threads > product.batch * chunks:
        least = min(m, 16)
        if product.batch == 1 and product.turned[0] and k & (k - 1) == 0 and k >= 2048:
            shares = min(threads, 4)
    best, lowest = (least, columns, 1, depth, 1), 1.0
    deep = shares > 1
    for share in range(shares, 0, -1):
        is_balanced = False
        for chunk in range(min(16 if copies_a else 1, chunks), 0, -1):
            for rows in range(most, least - 1, -1):
                score = _imbalance(product, threads, (rows, columns, chunk, depth, share))
                work = product.batch * ceil_div(m, rows) * ceil_div(n, columns * chunk)
                busy = threads // share
                if work < 3 * busy and work % busy and not deep:
                    continue
                if score < lowest:
                    best, lowest, is_balanced = (rows, columns, chunk, depth, share), score, True
        if not is_balanced:
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
    """Round a number to float32."""
    return c_float(value).value
