"""The comparison with other tools: the page matches the record, and the record matches the programs."""

import json
from typing import Any

import pytest

from benchmarks.peers.compared import answer
from benchmarks.peers.questions import ROWS
from benchmarks.peers.tools import DOCUMENTED, TOOLS
from docs.compared import BRIEF, PAGE, README, RECORD, page, with_brief


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return data


def test_the_page_is_generated_from_the_record(record: dict[str, Any]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(record), "python -m docs.compared writes it"
    readme = README.read_text(encoding="utf-8")
    assert readme == with_brief(readme, record), "python -m docs.compared writes it"


def test_every_tool_answered_every_question(record: dict[str, Any]) -> None:
    assert len(ROWS) == 57
    assert TOOLS.keys() == record.keys()
    for told in record.values():
        assert told["answers"].keys() == ROWS.keys() and told["version"] and told["date"]
    assert all(rows.keys() <= ROWS.keys() for _, rows in DOCUMENTED.values())


def test_what_the_record_says_of_this_package_is_so(record: dict[str, Any]) -> None:
    """Not all of them are quick: every sixth is asked again."""
    recorded = record["torchsummary_plus"]["answers"]
    for key in list(ROWS)[::6]:
        assert answer(TOOLS["torchsummary_plus"], key) == recorded[key], key


@pytest.mark.parametrize("name", ["torchsummary", "torchinfo"])
def test_what_the_readme_and_the_first_table_say_of_others_is_so(name: str, record: dict[str, Any]) -> None:
    """All but the question whose errors need a limit on memory."""
    pytest.importorskip(name)
    asked = [key for key in BRIEF if key != "huge"]
    assert {key: answer(TOOLS[name], key) for key in asked} == {key: record[name]["answers"][key] for key in asked}
