"""Conformance of agents as documents, and of what a turn leaves in a conversation: one test per case."""

from __future__ import annotations

import pytest

from tests.conformance.agents import AGENTS
from tests.conformance.cases import Case, load, mismatches, params

NEEDS_MORE = {
    ("agent_schema", "http"),
    ("chained_tool", "execute"),
    ("chained_tool", "agent_run"),
    ("chained_tool", "registry"),
    ("chained_tool", "tool_result"),
}
"""Carried out by test_agent_runs.py."""

CASES = [case for suite in AGENTS for case in load(suite) if (suite, case.op) not in NEEDS_MORE]


@pytest.mark.parametrize("case", params(CASES))
def test_case(case: Case) -> None:
    assert case.op in AGENTS[case.suite], f"no adapter for operation {case.op!r} of suite {case.suite!r}"

    assert mismatches(case.winner.expected, AGENTS[case.suite][case.op](case.input)) == []
