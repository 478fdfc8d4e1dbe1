"""`make bench` as a command: which measurements run, what is printed, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from tests.bench import __main__ as command
from tests.bench.context import Context
from tests.bench.figures import Figure

GOOD, BAD = Figure("good", 1.0, "ms", 2.0), Figure("bad", 3.0, "ms", 2.0)

Install = Callable[..., list[Context]]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Replaces the measurements by two modules: one makes M1 and M2, the other makes M3."""

    def with_figures(*figures: Figure, error: Exception | None = None) -> list[Context]:
        called: list[Context] = []

        def measure(context: Context) -> list[Figure]:
            called.append(context)
            return list(figures)

        def fail(_: Context) -> Iterator[Figure]:
            if error is not None:
                yield GOOD
                raise error

        for name, function in (("bench_two", measure), ("bench_one", fail)):
            module = ModuleType(name)
            module.measure = function  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(command, "MEASUREMENTS", {"M1": "bench_two", "M2": "bench_two", "M3": "bench_one"})
        return called

    return with_figures


@pytest.mark.parametrize(("figure", "code"), [(GOOD, 0), (BAD, 1)])
def test_the_exit_code_says_whether_a_bound_was_missed(
    install: Install, figure: Figure, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    install(figure)

    assert command.main([]) == code
    assert ("MISSED" in capsys.readouterr().out) is bool(code)


def test_a_module_that_makes_several_is_called_once_and_told_which(install: Install) -> None:
    called = install(GOOD)

    command.main(["m2", "M1", "--quick"])
    command.main(["M1"])

    both, first = called
    assert (both.wants("M1"), both.wants("M2"), both.quick) == (True, True, True)
    assert (first.wants("M1"), first.wants("M2"), first.quick) == (True, False, False)
    assert both.repeats >= 3
    assert first.repeats >= 5


def test_what_is_not_asked_for_does_not_run(install: Install) -> None:
    called = install(GOOD)

    assert command.main(["M3"]) == 0
    assert called == []


def test_a_measurement_that_fails_leaves_the_others_their_figures(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(BAD, error=RuntimeError("no such server"))

    assert command.main(["--json"]) == 1

    found = json.loads(capsys.readouterr().out)
    assert [figure["name"] for figure in found["figures"]] == ["bad", "good"], "what came before the failure too"
    assert found["failed"] == {"M3": "RuntimeError: no such server"}
    assert {"date", "machine", "postgresql", "valkey"} <= set(found["about"])


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["B99"])

    assert "unknown measurement B99; expected one of B1" in capsys.readouterr().err
