"""What `make test` leaves to a whole run: the longest tests, and never all of a file."""

from __future__ import annotations

from tests.support.long_tests import LONG_SECONDS, chosen, measured

PRINTED = """
==== slowest durations ====
3.00s call     tests/a.py::test_x[1.00s call     tests]
2.50s setup    tests/a.py::test_x[1.00s call     tests]
0.10s teardown tests/b.py::test_y
[gw1] PASSED tests/b.py::test_z
1.00s call     elsewhere.py::test_y
"""


def test_all_phases_of_a_test_count() -> None:
    assert measured(PRINTED.splitlines()) == {
        "tests/a.py::test_x[1.00s call     tests]": 5.5,
        "tests/b.py::test_y": 0.1,
    }


def test_the_longest_go_until_the_rest_fits() -> None:
    seconds = {
        "a.py::test_1": 1.0,
        "a.py::test_2": 9.0,
        "a.py::test_3": 5.0,
        "b.py::test_1": 7.0,
        "b.py::test_2": 8.0,
    }

    assert chosen(seconds, 30) == []
    assert chosen(seconds, 29) == ["a.py::test_2"]
    assert chosen(seconds, 14) == ["a.py::test_2", "b.py::test_2"]


def test_each_file_keeps_its_shortest_unless_that_is_long_too() -> None:
    seconds = {"a.py::test_1": LONG_SECONDS, "b.py::test_1": 7, "b.py::test_2": 7, "c.py::test_1": LONG_SECONDS + 1}

    assert chosen(seconds, 1) == ["b.py::test_2", "c.py::test_1"]
