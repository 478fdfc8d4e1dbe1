"""The table of the benchmark, for a terminal and for docs/benchmarks.md."""

from __future__ import annotations

from tests.bench import table
from tests.bench.figures import BEST, Bound, Figure

SLOW = Figure(
    "B1",
    12.0,
    "ms",
    peers={"Celery": 10.0, "LangGraph": 8.0},
    limits={"one commit": 0.25},
    bounds=[Bound(1.3, "Celery"), Bound(1.0, BEST)],
    hopes=[Bound(1.2, "Celery"), Bound(2.0, "one commit")],
    note="over HTTP",
)
PLAIN = Figure("memory", 250.0, "MB")


def test_a_row_shows_peers_ratios_limits_and_which_bound_was_missed() -> None:
    assert table.row(SLOW) == (
        "B1",
        "12.0 ms",
        "10.0",
        "8.00",
        "",
        "1.50 ×",
        "one commit 0.25 (48.0 ×)",
        "≤ 1.3 × Celery, ≤ 1 × best peer ✗",
        "MISSED",
        "≤ 1.2 × Celery ✓, ≤ 2 × one commit",
    )


def test_a_figure_without_bounds_is_neither_good_nor_missed() -> None:
    assert table.row(PLAIN) == ("memory", "250 MB", "", "", "", "", "", "", "", "")


def test_a_peer_that_has_no_column_is_shown_with_what_else_was_compared() -> None:
    cells = table.row(Figure("B12", 2.0, "s", peers={"ReAct loop": 5.0}, limits={"critical path": 1.9}))

    assert (
        cells[table.HEAD.index("compared with, in the same run")]
        == "critical path 1.90 (1.05 ×), ReAct loop 5.00 (0.40 ×)"
    )


def test_the_same_footnote_is_printed_once() -> None:
    found = table.markdown([SLOW, PLAIN, SLOW])

    assert found.count("over HTTP") == 1
    assert found.count("B1 [1]") == 2


def test_markdown_has_as_many_cells_in_every_row() -> None:
    lines = [line for line in table.markdown([SLOW, PLAIN]).splitlines() if line.startswith("|")]

    assert {line.count("|") for line in lines} == {len(table.HEAD) + 1}


def test_a_terminal_sees_aligned_columns_and_no_empty_one() -> None:
    head, slow, plain, _ = table.text([SLOW, PLAIN]).splitlines()

    assert head.index("planq") == slow.index("12.0 ms") == plain.index("250 MB")
    assert "DBOS" not in head
