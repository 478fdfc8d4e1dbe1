"""How `make test` deals tests out: whole files, long ones first, in one process where few were asked for."""

from __future__ import annotations

import pytest

from tests.support.parallel import APART, FIRST, ROOT, rank_of, scope_of, workers


@pytest.mark.parametrize(
    ("args", "keyword", "expected"),
    [
        (["tests"], "", 4),
        (["tests/unit", "tests/e2e"], "", 4),
        (["tests/unit", "tests/e2e/test_mcp.py"], "", 4),
        (["tests"], "guard", 0),
        (["tests/e2e/test_mcp.py"], "", 0),
        (["tests/e2e/test_mcp.py::test_a"], "", 0),
    ],
)
def test_a_run_that_was_narrowed_stays_in_one_process(args: list[str], keyword: str, expected: int) -> None:
    assert workers(2, args, keyword) == expected


def test_one_core_has_two_processes_too_because_tests_wait() -> None:
    assert workers(1, ["tests"], "") == 2


def test_the_tests_of_a_file_stay_together_unless_it_says_otherwise() -> None:
    assert scope_of("tests/e2e/test_mcp.py::test_a[x::y]") == "tests/e2e/test_mcp.py"
    for path in APART:
        assert scope_of(f"{path}::test_a[1]") == f"{path}::test_a[1]"


def test_long_tests_come_first() -> None:
    ids = [
        "tests/unit/test_house.py::test_a",
        "tests/faults/test_gone.py::test_b",
        "tests/chaos/test_chaos.py::test_c",
    ]

    assert sorted(ids, key=rank_of) == ids[::-1]


def test_what_the_order_names_is_there() -> None:
    for path in (*FIRST, *APART):
        assert (ROOT / path).exists(), path
