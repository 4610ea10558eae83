"""The words for a step's optimizer and device."""

from __future__ import annotations

SPELLINGS = {
    name.lower(): name
    for name in (
        "AdamW", "Adam", "SGD", "Adagrad", "Adadelta", "Adamax", "ASGD", "LBFGS", "NAdam", "RAdam", "RMSprop", "Rprop",
        "SparseAdam", "Adafactor", "Muon", "Lion",
    )
}  # fmt: skip
"""Optimizers' names as their papers and torch spell them."""

SPELT_OUT = "AEFHILMNORSX"
"""Letters whose names begin with a vowel: "an RTX 4090", "a T4"."""


def optimizer_words(name: str) -> str:
    """Return an optimizer's name for a sentence.

    >>> optimizer_words("adamw"), optimizer_words("paged_adamw_8bit"), optimizer_words("MyOptimizer")
    ('AdamW', 'paged 8-bit AdamW', 'MyOptimizer')
    """
    plain = name.lower().removesuffix("_torch").removesuffix("_torch_fused")
    base = plain.removeprefix("paged_").removesuffix("8bit").rstrip("_")
    if base not in SPELLINGS:
        return name
    return "paged " * plain.startswith("paged_") + "8-bit " * plain.endswith("8bit") + SPELLINGS[base]


def a_gpu(name: str) -> str:
    """Return a GPU's name with its article.

    >>> a_gpu("RTX 4090"), a_gpu("T4"), a_gpu("Jetson Orin NX 8GB"), a_gpu("Arc A770")
    ('an RTX 4090', 'a T4', 'a Jetson Orin NX 8GB', 'an Arc A770')
    """
    is_a_word = name[1:2].islower()
    return f"{'an' if name[:1] in ('AEIOU' if is_a_word else SPELT_OUT) else 'a'} {name}"


def on_device(device: str, gpu: str) -> str:
    """Return where a step runs.

    >>> on_device("cuda", "RTX 4090"), on_device("cpu", ""), on_device("cuda:1", "")
    ('on an RTX 4090', 'on the CPU', 'on cuda:1')
    """
    return f"on {a_gpu(gpu)}" if gpu else {"cpu": "on the CPU", "cuda:0": "on CUDA"}.get(device, f"on {device}")
