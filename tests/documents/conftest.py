"""A browser for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium, without a complaint in its console at the end."""
    from tests.documents.browser import chromium, complaints  # Needs selenium, which the other tests do without.

    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser
        assert complaints(browser) == []
