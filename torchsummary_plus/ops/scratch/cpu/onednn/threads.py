"""How oneDNN's threads share a convolution, and the scratch of their partial results and reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from .....data.rounding import ceil_div, round_up
from .description import PAGE, Conv, aligned, lanes, threads
from .gemm import patches_at_once, takes_blocks

BARRIER = PAGE
"""Bytes of a thread group's barrier, on a page of its own (``simple_barrier::ctx_t``)."""

Shares = tuple[int, int, int]
"""Number of parts along images, blocks of output channels and blocks of input channels."""

SUMS_LIMIT = 1 << 21
"""Limit on the elements of all threads' partial sums (``jit_avx2_convolution.hpp``)."""


def depthwise_reduction(conv: Conv, wide: int) -> int:
    """Return the partial sums of threads that share images; the others split channel blocks (``jit_uni_dw_conv``)."""
    at_once = min(ceil_div(conv.groups, wide), threads())
    shares = min(max(1, threads() // at_once), conv.batch) - 1
    size = round_up(conv.groups, wide) * conv.itemsize
    return aligned(size * prod(conv.kernel) * shares) + (aligned(size * shares) if conv.bias else 0)


def depthwise_rows_reduction(conv: Conv, wide: int) -> int:
    """Return the same in channels-last, where threads split channel blocks, images and rows to stay busy."""
    blocks = ceil_div(ceil_div(conv.groups, wide), min(4, (31 if wide == 16 else 15) // (2 * conv.kernel[-1])))
    busy = max(
        by_blocks * by_images * min(conv.out[0], threads() // (by_blocks * by_images))
        for by_blocks in range(1, min(blocks, threads()) + 1)
        for by_images in range(1, min(conv.batch, threads() // by_blocks) + 1)
    )
    sums = aligned(round_up(conv.groups, wide) * prod(conv.kernel) * conv.itemsize * (busy - 1))
    return sums + (aligned(conv.groups * conv.itemsize * (busy - 1)) if conv.bias else 0)


def direct_reduction(conv: Conv, wide: int, last: bool = False) -> int:
    """Return the partial sums of the direct kernel's weight gradient."""
    reads_few = conv.groups == 1 and (conv.ic < wide if wide == 16 else conv.ic == 3)
    in_block = conv.ic if reads_few else wide
    blocks = ceil_div(conv.ic, in_block), ceil_div(conv.oc, wide)
    if wide == 8:
        job = prod(conv.kernel) * in_block * wide
        images = conv.batch * (conv.inp[0] and prod(conv.out[:-2]))
        sums = _partial_sums(threads(), job, conv.groups * prod(blocks), images, SUMS_LIMIT, align=PAGE)
        return sums + _bias(conv, threads(), wide, SUMS_LIMIT)
    shares = _direct_shares(conv, in_block, blocks, last)
    size = conv.groups * round_up(conv.oc, wide) * (round_up(conv.ic, in_block) * prod(conv.kernel) + 1)
    return _shared(conv, size, shares, 3 * 5 * 5 * 16 * 16)


def pointwise_reduction(conv: Conv, wide: int) -> int:
    """Return the partial sums of the 1x1 kernel's weight gradient."""
    blocks = ceil_div(conv.ic, wide), ceil_div(conv.oc, wide)
    if wide == 8:
        at_once = blocks_at_once(conv, wide), _halved(blocks[1], 32)
        job = prod(at_once) * wide * wide
        jobs = prod(ceil_div(all_, some) for all_, some in zip(blocks, at_once))
        limit = threads() * job * 8
        sums = _partial_sums(threads(), job, jobs, conv.batch * prod(conv.out), limit, first_apart=True)
        return sums + _bias(conv, threads(), wide, limit)
    shares = _pointwise_shares(conv, wide)
    return _shared(conv, round_up(conv.oc, wide) * round_up(conv.ic, wide), shares, wide * wide)


def pointwise_workers(conv: Conv, wide: int) -> int:
    """Return the threads that take part in the 1x1 kernel's weight gradient."""
    return threads() if wide == 8 else prod(_pointwise_shares(conv, wide))


def pointwise_forward_workers(conv: Conv, wide: int) -> int:
    """Return the threads of the 1x1 kernel's forward: AVX-512's gives a small input to fewer of them.

    Source: ``init_conf`` in ``jit_avx512_common_1x1_conv_kernel.cpp``.
    """
    most, size, blocks = threads(), prod(conv.out), ceil_div(conv.oc, wide)
    row = _pointwise_row(conv, wide)
    rows = ceil_div(size, row)
    is_small = conv.batch * conv.groups * size * round_up(conv.ic, wide) * conv.itemsize < 8192
    if wide == 8 or not is_small or conv.batch >= most or blocks * rows >= most:
        return most

    def merit(chunk: int, workers: int) -> float:
        groups = ceil_div(blocks, chunk)
        members = ceil_div(workers, groups)
        wide_share, row_share = chunk * wide, ceil_div(conv.batch * rows, members) * row
        balance = 4 * wide_share * row_share / (wide_share + row_share) ** 2
        busy = max(1, workers // groups) / members * (conv.batch * rows) / round_up(conv.batch * rows, members)
        return balance + busy + blocks / round_up(blocks, groups)

    def groups_of(workers: int) -> int:
        counts = {ceil_div(blocks, chunk): chunk for chunk in range(blocks, 0, -1)}
        allowed = [chunk for groups, chunk in counts.items() if groups <= workers]
        return ceil_div(blocks, max(sorted(allowed), key=lambda chunk: merit(chunk, workers)))

    candidates = range(most // 2, conv.groups - 1, -1)
    return max(candidates, key=lambda workers: merit(groups_of(workers), workers), default=most)


def _pointwise_row(conv: Conv, wide: int) -> int:
    """Return the output elements that AVX-512's 1x1 forward keeps in registers at once."""
    size, lines = prod(conv.out), prod(conv.out[:-1])
    most, least = 30, 9
    if 8 * conv.batch >= threads():
        most, least = (6, 5) if 128 < round_up(conv.oc, wide) < 256 and 10 < lines < 28 else (9, 6)
    counts = range(most, least - 1, -1)
    whole = next((count for count in counts if (lines if lines >= 14 else size) % count == 0), 1)
    if whole > 1:
        return whole
    best, rest = min(most, size), size % most
    for count in counts:
        if size % count > rest or size % count == 0:
            best, rest = count, size % count
            if not rest:
                break
    return best


def _shared(conv: Conv, size: int, shares: Shares, limit: int) -> int:
    """Return one gradient copy per share of the images but one, on AVX-512; ``limit`` bounds the bias, per thread."""
    others, workers = shares[0] - 1, prod(shares) * (conv.groups if conv.groups <= threads() else 1)
    sums = aligned(size * others * conv.itemsize) + aligned(BARRIER, PAGE) if others else 0
    return sums + _bias(conv, workers, 16, workers * limit)


def _bias(conv: Conv, workers: int, wide: int, limit: int) -> int:
    if not conv.bias:
        return 0
    return _partial_sums(workers, wide, conv.groups * ceil_div(conv.oc, wide), conv.batch, limit, align=PAGE)


def blocks_at_once(conv: Conv, wide: int) -> int:
    """Return the blocks of input channels that a 1x1 kernel processes at once."""
    blocks = ceil_div(conv.ic, wide)
    return _halved(blocks, 9) if wide == 8 else best_divider(blocks, 5, blocks, largest=False)


def _halved(blocks: int, limit: int) -> int:
    while blocks > limit and (blocks % 2 == 0 or blocks % 3 == 0):
        blocks //= 2 if blocks % 2 == 0 else 3
    return blocks


def best_divider(size: int, least: int, most: int, *, largest: bool) -> int:
    """Return the block between ``least`` and ``most`` with the least padding; ``largest`` breaks ties."""
    most = max(1, min(most, size))
    candidates = range(max(1, min(least, most)), most + 1)
    loss = {block: 1 - size / round_up(size, block) for block in candidates}
    return min(candidates, key=lambda block: (loss[block], -block if largest else block))


def _partial_sums(
    workers: int, job: int, jobs: int, reduction: int, limit: int, *, first_apart: bool = False, align: int = 0
) -> int:
    """Return the partial sums of each thread group (``reduce_balancer_t::balance``).

    A group's first thread sums in the result itself, or with ``first_apart`` in a buffer of its own.
    """
    least, most = max(1, jobs // workers), max(1, limit // (workers * job))
    groups = min(jobs // least, workers)
    best = groups, min(workers // groups, reduction), ceil_div(jobs, groups)
    cost = jobs * job * reduction
    for each in range(least, jobs):
        groups = min(jobs // each, workers)
        members, each_at_most = min(workers // groups, reduction), ceil_div(jobs, groups)
        if members > 1 and each_at_most > most:
            continue
        candidate = job * each_at_most * (ceil_div(reduction, members) + (members != 1))
        if candidate < cost:
            best, cost = (groups, members, each_at_most), candidate
    groups, members, each_at_most = best
    if members == 1:
        return 0
    numbers = groups * (members - (not first_apart)) * each_at_most * job
    return aligned(4 * numbers, align) + aligned(groups * BARRIER, PAGE)


def _divisions(workers: int, images: int, blocks: tuple[int, int]) -> Iterator[Shares]:
    for share in range(1, min(workers, images) + 1):
        rest = workers // share
        for out_share in range(1, min(rest, blocks[1]) + 1):
            yield share, out_share, min(rest // out_share, blocks[0])


def _cheapest(divisions: list[Shares], cost: Callable[[Shares], int]) -> tuple[Shares, int]:
    """Return the last of the cheapest divisions, and its cost."""
    best, least = (1, 1, 1), cost((1, 1, 1))
    for shares in divisions:
        if cost(shares) <= least:
            best, least = shares, cost(shares)
    return best, least


def swaps_axes(conv: Conv) -> bool:
    """Whether AVX-512's direct kernel takes the height of a wide kernel for its width, where the output is 1 wide.

    Source: ``is_hw_transp`` in ``jit_avx512_common_conv_kernel.cpp``.
    """
    is_plain = len(conv.inp) == 2 and not (conv.is_strided or conv.is_dilated or any(conv.padding) or any(conv.ends))
    return is_plain and 14 <= conv.kernel[-1] < 20 and conv.out[-1] == 1 and conv.kernel[-1] == conv.inp[-1]


def _direct_shares(conv: Conv, in_block: int, blocks: tuple[int, int], last: bool) -> Shares:
    """Return AVX-512's direct kernel's shares (``balance`` in ``jit_avx512_common_conv_kernel.cpp``)."""
    if threads() < conv.groups:
        return 1, 1, 1
    workers = threads() // conv.groups
    swapped = not last and swaps_axes(conv)
    by_rows = not (last or swapped) and len(conv.inp) == 2 and conv.dilation[0] == 1 and conv.out[0] > 9
    rows_in, rows_out = (conv.inp[-2], conv.out[-2]) if by_rows else (1, 1)
    deep_in, deep_out = prod(conv.inp[:-2]), prod(conv.out[:-2])

    def traffic(shares: Shares) -> int:
        images, out_share, in_share = shares
        ins, outs = ceil_div(blocks[0], in_share), ceil_div(blocks[1], out_share)
        read = ceil_div(conv.batch * rows_in, images) * ins * in_block * (conv.inp[-2] // rows_in) * conv.inp[-1]
        for step in conv.stride[:-2] or (1,):
            read = read * deep_in // step
        read = read // conv.stride[-2] // conv.stride[-1]
        wrote = ceil_div(conv.batch * rows_out, images) * outs * 16 * (conv.out[-2] // rows_out) * conv.out[-1]
        return read + wrote * deep_out + 8 * outs * ins * prod(conv.kernel) * in_block * 16

    def work(shares: Shares) -> int:
        images, out_share, in_share = shares
        return ceil_div(conv.batch * rows_out, images) * ceil_div(blocks[1], out_share) * ceil_div(blocks[0], in_share)

    most = conv.batch * deep_out * max(1, rows_out // 9)
    divisions = list(_divisions(workers, most, blocks))
    best, least_traffic = _cheapest(divisions, traffic)
    least_work = work(best)
    for shares in divisions:
        cost = work(shares)
        is_light = swapped or traffic(shares) < 1.1 * least_traffic
        if (cost <= least_work and is_light) or 4 * cost <= 3 * least_work:
            best, least_work = shares, cost
    return _all_if_most(best, most)


def _pointwise_shares(conv: Conv, wide: int) -> Shares:
    """Return AVX-512's 1x1 kernel's shares of images and rows (``jit_avx512_common_1x1_conv_kernel.cpp``)."""
    blocks = ceil_div(conv.ic, wide), ceil_div(conv.oc, wide)
    size = prod(conv.out)
    block = best_divider(size, 7, 16, largest=True)
    if size % block:
        block = best_divider(conv.out[-1], 4, conv.out[-1], largest=False)
    block = 1 if block > 256 else block
    pieces = conv.batch * ceil_div(size, block)

    def traffic(shares: Shares) -> int:
        images, out_share, in_share = shares
        ins, outs = ceil_div(blocks[0], in_share), ceil_div(blocks[1], out_share)
        return ceil_div(pieces, images) * block * wide * (ins + outs) + 12 * outs * ins * wide * wide

    best, _ = _cheapest(list(_divisions(threads(), pieces, blocks)), traffic)
    return _all_if_most(best, conv.batch)


def _all_if_most(shares: Shares, most: int) -> Shares:
    """Give the images to all threads if more than half of them share the images."""
    few = threads() // 2 < shares[0] < threads()
    return (min(most, threads()), *shares[1:]) if few else shares


GEMM_LIMIT = 1 << 30
"""Absolute limit on an im2col kernel's scratch, in bytes ..."""
GEMM_SHARE = 15
"""... and its limit as a multiple of the tensors' bytes, per thread (``gemm_convolution_utils.cpp``)."""
GEMM_SMALL = 64 * 1024
"""Elements per thread below which products count as small."""


def gemm_for_forward(conv: Conv, columns: int) -> int:
    """Return the columns of oneDNN's best-rated blocks per thread, or of one image where threads split images.

    In 3-d an image is one slice.
    """
    size = prod(conv.out[-2:])
    if columns and len(conv.inp) == 2 and takes_blocks(conv):
        return aligned(threads() * patches_at_once(conv) * conv.itemsize)
    deep = prod(conv.out[:-2])
    apart = size // threads() < 512 and (deep > 1 or conv.batch > 1 or conv.groups > 2)
    images = conv.batch * conv.groups * deep
    return aligned(columns * (threads() if apart and _by_images(conv, images, size, conv.oc) else 1))


def gemm_for_data(conv: Conv, columns: int) -> int:
    """Return the same for the input's gradient, or a tenth of what the limit allows; one thread's if images are few."""
    apart = prod(conv.out[-2:]) // threads() < 512 or prod(conv.kernel) < 64
    apart = apart and (conv.batch > 1 or conv.groups > 2)
    apart = apart and _by_images(conv, conv.groups * conv.batch, prod(conv.inp[-2:]), conv.ic)
    return _gemm_columns(conv, columns, threads() if apart else 1, 0, 0.1)


def _by_images(conv: Conv, images: int, size: int, channels: int) -> bool:
    """Whether giving each thread whole images keeps threads as busy as splitting them, or an image is small."""
    wide = lanes()[0]
    parts = ceil_div(size, wide) * ceil_div(channels, wide)
    busy = [work / round_up(work, threads()) for work in (images, parts)]
    return busy[0] >= busy[1] or size * conv.ic * conv.oc // threads() < GEMM_SMALL


def gemm_for_weights(conv: Conv, columns: int) -> int:
    """Return columns and partial sums per thread; the kernel takes the weights' bytes for their number of elements."""
    workers = _workers_for_weights(conv)
    sums = aligned(4 * conv.weights * workers)
    return sums + _gemm_columns(conv, columns, workers, sums, 0.05)


def _workers_for_weights(conv: Conv) -> int:
    """Return the threads of the im2col kernel's weight gradient: all if images are small, and images or groups many."""
    is_small = prod(conv.out[-2:]) // threads() < 256
    return threads() if is_small and (conv.batch > 1 or conv.groups > 2) else 1


def gemm_for_data_last(conv: Conv) -> int:
    """Return, for channels-last, a whole image's columns per thread, and with groups each thread's image."""
    columns = prod(conv.kernel) * prod(conv.out) * conv.ic * conv.itemsize
    image = prod(conv.inp) * conv.ic * conv.itemsize if conv.groups > 1 else 0
    return _allowed(conv, sum(aligned(size * threads()) for size in (columns, image)))


def gemm_for_weights_last(conv: Conv, columns: int) -> int:
    """Return the same for channels-last, where an image is first transposed."""
    workers = _workers_for_weights(conv)
    image = prod(conv.inp) * conv.ic * conv.itemsize
    return _allowed(conv, sum(aligned(size * workers) for size in (columns, 4 * conv.weights, image)))


def _gemm_limit(conv: Conv) -> int:
    return min(GEMM_LIMIT, GEMM_SHARE * threads() * (conv.read + conv.weights + conv.written))


def _allowed(conv: Conv, scratch: int) -> int:
    """Return the scratch of a channels-last kernel; beyond the limit oneDNN runs its reference kernel, without any."""
    return scratch if scratch <= _gemm_limit(conv) else 0


def _gemm_columns(conv: Conv, columns: int, workers: int, taken: int, share: float) -> int:
    room = _gemm_limit(conv) - taken
    if room >= columns * workers:
        return aligned(columns * workers)
    column = columns // prod(conv.out[-2:])
    at_once = max(lanes()[0], int(room // (workers * column) * share))
    return aligned(column * at_once * workers)
