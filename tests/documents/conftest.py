"""A browser for the tests of a file, and torch as a CPU build of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from torchsummary_plus.ops.scratch.cuda.cudnn import backend


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium, without a complaint in its console at the end."""
    from tests.documents.browser import chromium, complaints  # Needs selenium, which the other tests do without.

    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser
        assert complaints(browser) == []


@pytest.fixture
def cpu_build(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No cuDNN, as in a CPU build: the pages show what is printed there (docs/memory_reference.md, cuDNN)."""
    backend.cudnn_library.cache_clear()
    monkeypatch.setattr(backend, "cudnn_path", lambda: None)
    yield
    backend.cudnn_library.cache_clear()
