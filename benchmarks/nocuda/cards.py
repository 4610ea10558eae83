"""The cards that can be played: a JSON file each, with the real one's properties and where they come from."""

from __future__ import annotations

from pathlib import Path

CARDS = Path(__file__).parents[2] / "torchsummary_plus" / "ops" / "scratch" / "cuda" / "cudnn" / "card_files"
"""The package's own, found without importing it: torch must not be loaded before the stand-ins are."""


def card_names() -> list[str]:
    return sorted(path.stem for path in CARDS.glob("*.json"))


def card_path(card: str) -> Path:
    """The file of a card, by its name in any case with or without spaces, or by a path of one's own.

    >>> card_path("RTX 3090").name
    'rtx3090.json'
    """
    named = CARDS / f"{card.replace(' ', '').lower()}.json"
    path = named if named.exists() else Path(card)
    if path.suffix != ".json" or not path.exists():
        raise SystemExit(f"no card is called {card!r}: name one of {', '.join(card_names())}, or a JSON file")
    return path.resolve()
