"""The HTML table: a parser reads the numbers back, names are escaped, and it is readable without CSS and JavaScript."""

import re
from dataclasses import replace
from time import process_time
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tabulate import tabulate

from examples.resnet import resnet18
from tests.truth.random_models import law, looks, summaries
from torchsummary_plus import ModelSummary, summary
from torchsummary_plus.data.units import UNITS, one_line
from torchsummary_plus.render.html import fragment, table_html


@pytest.fixture(scope="module")
def of_resnet() -> ModelSummary:
    columns = ["output_size", "num_params", "params_percent", "mult_adds", "saved_bytes", "peak_bytes"]
    return summary(resnet18(), (3, 64, 64), memory="train", col_names=columns, verbose=0)


def parsed(html: str) -> Element:
    """A page or a piece of one, read by the rules of HTML 5; raises for what a browser would have to mend."""
    fragment: Element = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parseFragment(html)
    return fragment


def text_of(element: Element) -> str:
    return "".join(element.itertext())


def label_of(row: Element) -> str:
    """A row's label without the branches in front of it."""
    return (row[0][-1].tail if len(row[0]) else row[0].text) or ""


@law(8)
@given(summaries(memory=(None, "train")), looks, st.sampled_from(UNITS))
def test_a_parser_reads_any_summary_back(result: ModelSummary, look: dict[str, Any], units: str) -> None:
    tables = result.tables(**look, units=units)
    assert len(parsed(result.to_html(**look, units=units)).findall(".//table")) == len(tables)
    whole = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(result._html_page(**look, units=units))
    assert len(list(whole.iter("script"))) == 2 and text_of(next(whole.iter("title"))) == one_line(tables[0].title)
    for table in tables:
        page = parsed(str(table_html(table)))
        rows = page.findall(".//tbody/tr")
        assert [label_of(row) for row in rows] == [one_line(row.label) for row in table.rows]
        assert [row[0].get("title") for row in rows] == [one_line(row.path) for row in table.rows]
        assert [[text_of(cell) for cell in row.findall("td")] for row in rows] == [
            [one_line(cell.inside or cell.text) for cell in row.cells] for row in table.rows
        ]
        numbers = [[cell.get("data-v") for cell in row.findall("td")] for row in rows]
        for row, values in zip(table.rows, numbers):
            for field, cell, number in zip(table.fields, row.cells, values):
                assert number == (str(cell.value) if field.unit and cell.value is not None else None)
        headings = [text_of(cell) for cell in page.findall(".//thead/tr/th")]
        assert headings == [table.labels, *(field.heading for field in table.fields)]
        shown = [text_of(part) for part in page.findall(".//dl//*") if part.tag in ("dt", "dd")]
        assert shown == [text for total in table.totals for text in (total.field.heading, total.cell.text)]
        around = [one_line(text) for text in (table.answer, *table.notes) if text]
        assert [text_of(note) for note in page.findall(".//p")] == around


def test_nothing_is_loaded(of_resnet: ModelSummary) -> None:
    page = of_resnet._html_page()
    assert not re.search(r"https?:|//\w+\.\w|\bsrc=|\bhref=|@import|url\(|fetch\(|XMLHttp", page)


def test_ten_thousand_rows(of_resnet: ModelSummary) -> None:
    """As a ratio to tabulate's time for the same cells, and to the size: nothing in it grows faster than the rows."""
    table = of_resnet.tables(style="tree")[0]
    table = replace(table, rows=table.rows[:1] + (table.rows[1:] * 200)[:9999])
    cells = [[row.label, *(cell.text for cell in row.cells)] for row in table.rows]
    fragment([replace(table, rows=table.rows[:9])])
    start = process_time()
    drawn = fragment([table])
    middle = process_time()
    tabulate(cells, disable_numparse=True)
    assert middle - start < 6 * (process_time() - middle)
    assert len(drawn) < 10_000 * 500
