"""Generated parts of pages, between a marker ``<!-- NAME -->`` and ``<!-- end of NAME -->``."""

from __future__ import annotations


def with_part(page: str, name: str, text: str) -> str:
    r"""Return a page with another text between the markers of a part.

    >>> with_part("before\n<!-- one -->\nold\n<!-- end of one -->\nafter\n", "one", "new")
    'before\n<!-- one -->\nnew\n<!-- end of one -->\nafter\n'
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page has no part {name!r}")
    return f"{before}{begin}{text}\n{end}{after}"
