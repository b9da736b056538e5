"""docs/openinfer/ops.md agrees with the table of ops."""

import re

import openinfer_reference as reference
from openinfer_ops_page import PAGE, TABLES, filled


def test_tables_are_those_of_the_table_of_ops():
    page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- table: (\w+) -->", page)) == set(TABLES)
    hint = "run `python tests/support/openinfer_ops_page.py`"
    assert filled(page) == page, hint


def test_tolerances_are_those_of_the_tests():
    page = PAGE.read_text(encoding="utf-8")
    header, _, row = re.search(r"\n(\| f64 .*)\n(.*)\n(\|.*)\n", page).groups()
    names, cells = (re.findall(r"[^|\s][^|]*[^|\s]", line) for line in (header, row))
    found = {n: tuple(map(float, c.split(", "))) for n, c in zip(names, cells, strict=True)}
    assert found == reference.TOLERANCES
