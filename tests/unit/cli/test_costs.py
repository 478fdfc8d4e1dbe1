"""`planq costs`: what it sends and prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.testing import Result

from tests.support.recorder import Recorder

Planq = Callable[..., Result]

SUMS = {"calls": 3, "unpriced_calls": 1, "input_tokens": 1_200, "output_tokens": 34, "cache_read_tokens": 800}


def report(*items: dict[str, Any]) -> dict[str, Any]:
    return {"from": "2026-11-01", "to": "2026-11-28", "items": list(items), "total": {**SUMS, "cost_usd": 1.25}}


def test_costs_are_a_table_with_their_sum(planq: Planq, server: Recorder) -> None:
    server.answer(
        200, report({**SUMS, "name": "clerk\x1b[1m", "cost_usd": 1.25}, {**SUMS, "name": None, "cost_usd": None})
    )
    shown = planq("costs", "--by", "agent", "--from", "2026-11-01")
    method, path, _, _ = server.asked[-1]
    assert (method, path) == ("GET", "/costs?by=agent&from=2026-11-01")
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0] == ["agent", "USD", "calls", "tokens", "in", "from", "cache", "tokens", "out"]
    assert lines[2] == ["(no", "agent)", "–", "3", "1200", "800", "34"]
    assert lines[3] == ["in", "all", "1.25", "3", "1200", "800", "34"]
    assert "\x1b" not in shown.stdout
    assert "1 of the calls went to models whose price is not known" in shown.stderr


def test_no_costs_are_said_and_json_is_as_it_came(planq: Planq, server: Recorder) -> None:
    server.answer(200, report())
    assert "no model was called from 2026-11-01 to 2026-11-28" in planq("costs").stderr
    assert '"items": []' in planq("costs", "--json").stdout
