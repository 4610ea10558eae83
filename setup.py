"""Build the package. ``REPOSITORY_URL=https://... python -m build`` makes the README's links and images absolute."""

import os
import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).with_name("README.md")
RELATIVE = re.compile(r'(\]\(|(?:src|srcset)=")(?!https?:|#)')
PICTURE = re.compile(r"^<picture>.*</picture>\n?", flags=re.MULTILINE)
LINK = re.compile(r"\[([^]]+)\]\((?!https?:|#)[^)]+\)")


def long_description(repository: str) -> str:
    """Return the README for a package index, where links relative to the repository are broken.

    They become absolute below ``repository``; without one, links become plain text and images are removed.
    """
    text = README.read_text(encoding="utf-8")
    if repository:
        return RELATIVE.sub(lambda match: f"{match[1]}{repository.rstrip('/')}/raw/HEAD/", text)
    return LINK.sub(r"\1", PICTURE.sub("", text))


setup(
    long_description=long_description(os.environ.get("REPOSITORY_URL", "")),
    long_description_content_type="text/markdown",
)
