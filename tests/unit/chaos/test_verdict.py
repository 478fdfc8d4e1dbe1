from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.recipes import Recipe
from tests.chaos.verdict import UNKNOWN, Ended, defects

RECIPE = Recipe(1, "kind", {}, ({"value": 1}, {"value": 2}), frozenset({0}), told=("the end",))


def step(index: int, status: str = "succeeded", code: str | None = None, **more: Any) -> dict[str, Any]:
    output = RECIPE.outputs[index] if status == "succeeded" else None
    error = {"code": code, "message": code} if code else None
    attempt = 0 if status == "skipped" else 1
    found = {"index": index, "tool_name": "chaos_x", "status": status, "attempt": attempt}
    return {**found, "output": output, "error": error, **more}


def ended(
    *steps: dict[str, Any], status: str = "completed", answer: str = "the end", cancelled: bool = False
) -> Ended:
    document = {"id": "job", "status": status, "answer": answer, "error": None, "steps": list(steps)}
    return Ended(RECIPE, document, cancelled)


def ledger(*counts: int) -> Counter[str]:
    return Counter({f"job/{index}": count for index, count in enumerate(counts)})


GOOD = [
    (ended(step(0), step(1)), ledger(1, 1)),
    (ended(step(0), step(1)), ledger(1, 3)),
    (ended(step(0, "failed", UNKNOWN), step(1, "skipped"), answer=""), ledger(1, 0)),
    (ended(step(0), step(1, "cancelled"), status="cancelled", cancelled=True), ledger(1, 1)),
]

BAD = [
    (ended(step(0), step(1, output={"value": 3})), ledger(1, 1), "gave {'value': 3}, expected {'value': 2}"),
    (ended(step(0), step(1), status="failed"), ledger(1, 1), "status is failed"),
    (ended(step(0), step(1), status="cancelled"), ledger(1, 1), "status is cancelled"),
    (ended(step(0), step(1), cancelled=True), ledger(1, 1), "expected cancelled"),
    (ended(step(0)), ledger(1), "1 steps, expected 2"),
    (ended(step(0), step(1, "failed", UNKNOWN)), ledger(1, 1), "step 1 (chaos_x) is failed"),
    (ended(step(0), step(1, "failed", "timeout")), ledger(1, 1), "step 1 (chaos_x) is failed"),
    (ended(step(0), step(1, "skipped")), ledger(1, 0), "step 1 (chaos_x) is skipped"),
    (ended(step(0), step(1)), ledger(1, 0), "never came to its end"),
    (ended(step(0, "failed", UNKNOWN), step(1, "skipped")), ledger(1, 1), "it was called 1 times"),
    (ended(step(0), step(1), answer="nothing"), ledger(1, 1), "does not tell 'the end'"),
]


def test_a_job_that_is_planned_by_rounds_stops_for_its_reason_and_plans_nothing_on_an_unknown_outcome() -> None:
    recipe = replace(RECIPE, stop_reason="answered")

    def found(*steps: dict[str, Any], reason: str = "answered") -> list[str]:
        one = ended(*steps)
        return defects(Ended(recipe, {**one.document, "stop_reason": reason}, False), ledger(1, 1), ledger(1, 1))

    assert found(step(0), step(1)) == []
    assert found(step(0, "failed", UNKNOWN)) == []
    assert found(step(0)) == ["1 steps, expected 2"]
    assert found(step(0), step(1), reason="stalled") == ["stop_reason is stalled, expected answered"]


@pytest.mark.parametrize(("good", "counts"), GOOD)
def test_a_right_end_has_no_defects(good: Ended, counts: Counter[str]) -> None:
    assert defects(good, counts, counts) == []


@pytest.mark.parametrize(("bad", "counts", "told"), BAD)
def test_a_wrong_end_is_told(bad: Ended, counts: Counter[str], told: str) -> None:
    (defect,) = defects(bad, counts, counts)
    assert told in defect
