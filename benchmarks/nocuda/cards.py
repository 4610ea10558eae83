"""The GPUs that can be simulated: a JSON file each, with the real one's properties and their sources."""

from __future__ import annotations

from pathlib import Path

CARDS = Path(__file__).parents[2] / "torchsummary_plus" / "ops" / "scratch" / "cuda" / "cudnn" / "card_files"
"""The package's own folder, found without importing it, because torch must not be loaded before the stubs."""


def card_names() -> list[str]:
    return sorted(path.stem for path in CARDS.glob("*.json"))


def card_path(card: str) -> Path:
    """Return the file of a GPU, by its name in any case with or without spaces, or by a path.

    >>> card_path("RTX 3090").name
    'rtx3090.json'
    """
    named = CARDS / f"{card.replace(' ', '').lower()}.json"
    path = named if named.exists() else Path(card)
    if path.suffix != ".json" or not path.exists():
        raise SystemExit(f"no card is called {card!r}: name one of {', '.join(card_names())}, or a JSON file")
    return path.resolve()
