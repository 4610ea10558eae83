"""Compare the rules for convolutions' scratch memory with torch's profiler: ``python -m benchmarks.conv_truth``.

Convolutions are drawn at random, forward and backward: 1 to 3 axes, transposed, groups, strides, dilations, layouts,
float32 and float64. Each operator with a different peak is printed. ``ATEN_CPU_CAPABILITY`` and
``ONEDNN_MAX_CPU_ISA`` restrict the instruction set.
"""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import islice

import torch

from tests.ops.convs import random_cases, seen, verdict

AT_ONCE = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="number of convolutions")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random convolutions")
    parser.add_argument("--threads", type=int, default=1, help="number of threads of torch's kernels")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cases = islice(random_cases(options.seed), options.count)
    counts: dict[str, Counter[str]] = {}
    while part := list(islice(cases, AT_ONCE)):
        for case, pair in zip(part, seen(part)):
            layout = "channels last" if case.is_last else "row-major"
            count = counts.setdefault(f"{str(case.dtype)[6:]}, {layout}", Counter())
            for operator in pair:
                judged = verdict(operator)
                count[judged] += 1
                if judged != "exact":
                    difference = operator.predicted() - operator.peak_bytes
                    print(
                        f"{judged:6} {operator.operator[6:]:20} {difference:+,} of {operator.peak_bytes:,}: {case}",
                        flush=True,
                    )
    for kind, count in sorted(counts.items()):
        print(f"{kind}: " + ", ".join(f"{number:,} {judged}" for judged, number in count.most_common()))


if __name__ == "__main__":
    main()
