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
    """Return the README as an index shows it, where links and images that are relative to the repository lead nowhere.

    They become absolute below ``repository``; without one, links become plain text and images are left out.
    """
    text = README.read_text(encoding="utf-8")
    if repository:
        return RELATIVE.sub(lambda match: f"{match[1]}{repository.rstrip('/')}/raw/HEAD/", text)
    return LINK.sub(r"\1", PICTURE.sub("", text))


setup(
    long_description=long_description(os.environ.get("REPOSITORY_URL", "")),
    long_description_content_type="text/markdown",
)
