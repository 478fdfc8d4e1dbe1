"""Conformance of the pure core: one test per case of its suites, as docs/decisions.md decides it."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from tests.conformance.adapters import ADAPTERS
from tests.conformance.cases import Case, load, mismatches, params
from tests.conformance.overrides import RULES, TABLES, expectation

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions.md"
NEEDS_THE_ENGINE = {
    ("plan_execute_respond", "run"),
    ("orchestrate_engine", "run"),
    ("orchestrate_engine", "max_concurrent"),
    ("orchestrate_compile", "planner_request"),
    ("orchestrate_compile", "tool_error"),
    ("agently_plan", "run_plan"),
    ("agently_plan", "loop"),
    ("agently_plan", "callback_http"),
    ("agently_plan", "replay_results"),
    ("inbound_flow", "tool_loop"),
    ("inbound_flow", "planner_call"),
    ("inbound_flow", "task"),
    ("inbound_flow", "create_task"),
    ("inbound_flow", "refine_plan"),
    ("inbound_flow", "http"),
    ("inbound_flow", "openapi"),
}
NOT_THERE_YET = {
    "telegram_in": "the channel telegram",
    "telegram_out": "the channel telegram",
    "reflect": "insights",
    "insights": "insights",
}
"""Operations of `inbound_flow` whose capability this release does not have."""

CASES = [
    case
    for suite in ADAPTERS
    for case in load(suite)
    if (suite, case.op) not in NEEDS_THE_ENGINE and not (suite == "inbound_flow" and case.op in NOT_THERE_YET)
]


@pytest.mark.parametrize("case", params(CASES))
def test_case(case: Case) -> None:
    assert case.op in ADAPTERS[case.suite], f"no adapter for operation {case.op!r} of suite {case.suite!r}"
    expected, used = expectation(case)

    actual = ADAPTERS[case.suite][case.op](case.input)

    by = "; ".join(f"D{rule.decision}: {rule.name}" for rule in used) or "the case itself"
    assert mismatches(expected, actual) == [], f"expected by {by}"


def test_a_rule_names_a_decision_and_an_operation_that_exists() -> None:
    known = {int(number) for number in re.findall(r"^### D(\d+)\.", DECISIONS.read_text("utf-8"), re.MULTILINE)}
    operations = {op for adapters in ADAPTERS.values() for op in adapters}
    operations |= {op for _, op in NEEDS_THE_ENGINE}
    for rule in (*RULES, *chain.from_iterable(TABLES.values())):
        assert rule.decision in known
        assert rule.op in operations
