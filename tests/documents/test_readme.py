"""README and pages: Python blocks run and print what is shown, shell commands exit with 0."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from docs.columns import PAGE, with_columns
from docs.outputs import with_outputs
from examples.resnet import BasicBlock
from torchsummary_plus import MemoryEstimate, ModelSummary, __version__, graph
from torchsummary_plus.api.cli.main import main
from torchsummary_plus.live.versions import since
from torchsummary_plus.ops.scratch.cuda.cudnn import library
from torchsummary_plus.render.columns import COLUMNS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page: of what kind, and what is in them."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def outline(page: str) -> list[str]:
    """Each fenced block's kind, and its first line if that holds no figure: a title, or the rule of a table."""
    firsts = [(kind, text.partition("\n")[0]) for kind, text in blocks(page)]
    return [kind if re.search(r"\d", first) else f"{kind}: {first}" for kind, first in firsts]


def commands() -> list[str]:
    """Every call of ``torchsummary-plus`` in a shell block of a page, also behind an installation."""
    every_block = [block for page in PAGES for block in blocks(page.read_text(encoding="utf-8"))]
    lines = [line for kind, text in every_block if kind == "bash" for line in text.splitlines()]
    calls = [part.strip() for line in lines for part in line.split("&&")]
    return [re.sub(r"^\S*torchsummary-plus ", "", call) for call in calls if re.match(r"\S*torchsummary-plus ", call)]


def test_images_are_there_and_small() -> None:
    images = [ROOT / place for place in re.findall(r'(?:src|srcset)="([^"]+)"', README)]
    assert images and all(0 < image.stat().st_size < 200_000 for image in images)


@pytest.fixture
def cpu_build(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No cuDNN, as in a CPU build: the pages show what is printed there (docs/memory.md, cuDNN)."""
    library.cudnn_library.cache_clear()
    monkeypatch.setattr(library, "cudnn_path", lambda: None)
    yield
    library.cudnn_library.cache_clear()


@pytest.mark.usefixtures("cpu_build", "kept_workspaces")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_python_blocks_print_what_the_page_shows(path: Path) -> None:
    """One after the other, as a reader would run them; a text block is what the block above it prints."""
    page = path.read_text(encoding="utf-8")
    if "Schedule1F1B" in page and not since("2.13"):
        pytest.skip("pipeline schedules need torch 2.13")
    if "Schedule1F1B" in page and since("2.15"):
        pytest.skip("another stage of the pipeline has the highest peak from torch 2.15 on")
    if "peft" in page:
        pytest.importorskip("peft")
    printed = with_outputs(page)
    if since("2.13"):
        assert page == printed, "python -m docs.outputs writes it"
    else:
        # The allocator chooses other cached blocks, and CUDA's rules were measured on later releases.
        assert outline(page) == outline(printed)


def test_the_readme_shows_what_its_python_prints() -> None:
    kinds = [kind for kind, _ in blocks(README)]
    assert ("python", "text") in pairwise(kinds)


def test_the_readme_draws_its_graph() -> None:
    """GitHub renders the Mermaid block: it is what the Python above it draws."""
    drawn = graph(BasicBlock(64, 64, 1, None), (64, 56, 56)).to_mermaid()
    assert [text for kind, text in blocks(README) if kind == "mermaid"] == [drawn.rstrip("\n") + "\n"]


def test_a_screen_of_the_readme_compares_fits_and_draws() -> None:
    screen = README.partition("## Compare, fit, draw\n")[2].partition("\n## ")[0]
    assert all(word in screen for word in ("Training peak", "fits in 4 GiB: yes", "flowchart"))
    assert len(screen.splitlines()) < 80


@pytest.mark.parametrize("command", commands())
def test_shell_commands_exit_with_0(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) == 0


def test_the_citation_is_of_the_latest_release() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^(version|date-released): (.+)$", citation, flags=re.MULTILINE))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.findall(r"^## (\d\S+) \((.+)\)$", changes, flags=re.MULTILINE)[0]
    released = datetime.strptime(date, "%d %B %Y").date().isoformat()
    assert stated == {"version": version, "date-released": released}
    assert version == __version__


def test_the_table_of_columns_is_that_of_the_registry() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_columns(page), "python -m docs.columns writes it"
    assert all(f"| `{name}` | " in page and column.about for name, column in COLUMNS.items())


@pytest.mark.parametrize(("page", "title", "result"), [
    ("numbers.md", "Totals", ModelSummary),
    ("memory.md", "What comes back", MemoryEstimate),
])  # fmt: skip
def test_every_field_that_is_explained_is_there(page: str, title: str, result: type) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)", row)]
    assert names and all(hasattr(result, name) or name in result.__dataclass_fields__ for name in names)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(r"(?:src|srcset)=\"([^\"]+)\"", text)
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_readme_on_an_index_has_no_relative_link() -> None:
    describe = runpy.run_path(str(ROOT / "setup.py"))["long_description"]
    linked, plain = describe(README, "https://host/us/it/"), describe(README, "")
    assert "(https://host/us/it/blob/HEAD/docs/memory.md)" in linked
    assert 'src="https://host/us/it/raw/HEAD/docs/images/' in linked
    for page in (linked, plain):
        targets = re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)", page)
        assert all(link.startswith("https://") for pair in targets for link in pair if link)
    assert "](" not in plain and "<img" not in plain and "many GPUs" in plain
