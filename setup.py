"""Build the package.

``REPOSITORY_URL=https://... python -m build`` names the project's pages, and makes the README's links and images
absolute.
"""

import os
import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).with_name("README.md")
LINK = re.compile(r"(\[[^]]+\])\((?!https?:|#)([^)]+)\)")
IMAGE = re.compile(r'((?:src|srcset)=")(?!https?:)')
PICTURE = re.compile(r"^<picture>.*</picture>\n?", flags=re.MULTILINE)


def long_description(text: str, repository: str) -> str:
    """Return the README for a package index, where links relative to the repository are broken.

    They become absolute: pages below ``repository``'s ``blob/HEAD``, images below its ``raw/HEAD``. Without a
    repository, links become plain text and images are removed.
    """
    if not repository:
        return LINK.sub(lambda match: match[1][1:-1], PICTURE.sub("", text))
    base = repository.rstrip("/")
    return IMAGE.sub(rf"\g<1>{base}/raw/HEAD/", LINK.sub(rf"\g<1>({base}/blob/HEAD/\g<2>)", text))


def project_urls(repository: str) -> dict[str, str]:
    """Return the links that a package index shows beside the README; none without a repository."""
    base = repository.rstrip("/")
    return {"Source": base, "Changelog": f"{base}/blob/HEAD/CHANGELOG.md"} if base else {}


if __name__ == "__main__":
    REPOSITORY = os.environ.get("REPOSITORY_URL", "")
    setup(
        long_description=long_description(README.read_text(encoding="utf-8"), REPOSITORY),
        long_description_content_type="text/markdown",
        project_urls=project_urls(REPOSITORY),
    )
