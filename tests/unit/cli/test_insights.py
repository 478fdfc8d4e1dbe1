"""`planq insights`: what it sends and prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.testing import Result

from tests.support.recorder import Recorder

ID = "01a1fc26-aa7a-7082-9f4d-2dd23711ed45"
INSIGHT = {
    "id": ID,
    "kind": "correction",
    "lesson": "`convert`\x1b[1m failed",
    "seen": 3,
    "against": 1,
    "is_pinned": True,
    "retired_at": None,
    "reflection": None,
}
ONE = {"value": 0.5, "low": 0.25, "high": 0.75}
CONTRAST = {"with": ONE, "without": None, "difference": None, "verdict": "too_few"}
MEASURES = ("success", "tool_failures", "rounds", "seconds", "cost_usd", "tokens")

Planq = Callable[..., Result]


def last(server: Recorder) -> tuple[str, str, Any]:
    method, path, _, body = server.asked[-1]
    return method, path, body


def test_insights_are_listed_and_shown(planq: Planq, server: Recorder) -> None:
    server.answer(200, {"items": [INSIGHT], "next_cursor": None})
    told = planq("insights", "list").stdout
    assert [word in told for word in (ID, "correction", "seen 3, against 1", "pinned", "convert")] == [True] * 5
    assert "\x1b" not in told

    source = {"job_id": ID, "round": 0, "step_index": 2, "seen_at": "2026-11-28T00:00:00Z"}
    server.answer(200, {**INSIGHT, "sources": [source, {**source, "step_index": None}]})
    told = planq("insights", "show", ID).stdout
    assert "step 2" in told
    assert last(server)[:2] == ("GET", f"/insights/{ID}")


def test_insights_are_pinned_and_retired_and_that_is_taken_back(planq: Planq, server: Recorder) -> None:
    server.answer(200, INSIGHT)
    for arguments, body in (
        (("pin", ID), {"is_pinned": True}),
        (("pin", ID, "--undo"), {"is_pinned": False}),
        (("retire", ID), {"is_retired": True}),
        (("retire", ID, "--undo"), {"is_retired": False}),
    ):
        assert planq("insights", *arguments).exit_code == 0
        assert last(server) == ("PATCH", f"/insights/{ID}", body)


def test_the_report_is_a_table(planq: Planq, server: Recorder) -> None:
    measured = {"id": ID, "lesson": "x", "is_pinned": False, "is_retired": True, "offered": 9, "held_out": 1}
    report = {
        "days": 7,
        "mode": "on",
        "jobs": {"offered": 9, "held_out": 1, "shadow": 0},
        "verdict": "too_few",
        "measures": dict.fromkeys(MEASURES, CONTRAST),
        "insights": [{**measured, "success": CONTRAST}],
    }
    server.answer(200, report)
    told = planq("insights", "report", "--days", "7").stdout
    assert told.startswith("too_few: 9 jobs with insights, 1 held out, 0 in shadow; insights are on\n")
    for word in ("failed calls", "0.5 (0.25 to 0.75)", "retired", "9 with, 1 without"):
        assert word in told
