"""`planq batch`: what it asks for, and what it tells on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from typer.testing import Result

from planq.api.batches.commands import estimate_line, summary
from tests.support.recorder import Recorder
from tests.support.tiers import rare

ID = "01a1fc26-aa7a-7082-9f4d-2dd23711ed45"
Planq = Callable[..., Result]


def batch(status: str = "in_progress", *, paused: str | None = None, **counts: int) -> dict[str, Any]:
    known = dict.fromkeys(("total", "unvalidated", "invalid", "waiting", "running", "deferred"), 0)
    known |= dict.fromkeys(("completed", "partial", "incomplete", "failed", "cancelled"), 0)
    return {
        "id": ID,
        "status": status,
        "name": "over\x1b[1m night",
        "paused_at": None if paused is None else "2026-01-01T00:00:00+00:00",
        "pause_reason": paused,
        "counts": known | counts,
        "cost_usd": 0.0,
        "tokens": 0,
        "eta_seconds": None,
        "estimate": None,
        "error": None,
    }


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planq.api.batches.commands._POLL_SECONDS", 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"custom_id": "a", "body": {"input": "x"}}\n')
    return path


def test_a_file_is_sent_as_it_is_with_what_is_said_of_it(planq: Planq, server: Recorder, file: Path) -> None:
    server.answer(202, batch("validating", total=1, unvalidated=1))
    (file.parent / "defaults.json").write_text('{"model": "offline"}')

    told = planq(
        *("batch", "submit", str(file), "--no-wait", "--name", "nightly", "--strict", "--canary", "5", "--no-start"),
        *("--budget", "max_cost_usd=2.5", "--budget", "max_tokens=1000", "--metadata", "team=a&b"),
        *("--defaults", f"@{file.parent / 'defaults.json'}", "--priority", "bulk", "--idempotency-key", "k1"),
        *("--discount", "provider"),
    )

    assert (told.exit_code, told.stdout) == (0, f"{ID}\n")
    ((method, path, headers, body),) = server.asked
    assert (method, body) == ("POST", file.read_bytes())
    assert dict(parse_qsl(path.partition("?")[2])) == {
        "name": "nightly",
        "priority": "bulk",
        "canary": "5",
        "discount": "provider",
        "strict": "true",
        "start": "false",
        "defaults": '{"model": "offline"}',
        "metadata": '{"team": "a&b"}',
        "max_cost_usd": "2.5",
        "max_tokens": "1000",
    }
    assert (headers["content-type"], headers["idempotency-key"]) == ("application/jsonl", "k1")
    assert headers["content-length"] == str(len(file.read_bytes()))


def test_it_is_followed_to_its_end_a_line_for_each_change(planq: Planq, server: Recorder, file: Path) -> None:
    server.answer_in_turn("/batches", batch("validating", total=3, unvalidated=3), status=202)
    server.answer_in_turn(
        f"/batches/{ID}",
        batch(total=3, waiting=3),
        batch(total=3, completed=1, waiting=2),
        batch(total=3, completed=1, waiting=2),
        {**batch("completed", total=3, completed=2, failed=1), "cost_usd": 0.25},
    )

    told = planq("batch", "submit", str(file))

    assert told.exit_code == 1
    assert told.stderr.splitlines()[:4] == [
        "validating: 0/3 lines",
        "in_progress: 0/3 lines",
        "in_progress: 1/3 lines, 1 completed",
        "completed: 3/3 lines, 2 completed, 1 failed, 0.2500 USD",
    ]
    assert told.stdout == f"batch {ID} completed: 3/3 lines, 2 completed, 1 failed, 0.2500 USD\n"


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (batch("completed", total=2, completed=2), 0),
        (batch("completed", total=2, completed=2, partial=1), 3),
        (batch("completed", total=2, completed=2, incomplete=1), 3),
        (batch("completed", total=2, completed=1, failed=1), 1),
        rare(batch("completed", total=3, completed=2, partial=1, failed=1), 1),
        rare(batch("completed", total=2, completed=1, invalid=1), 1),
        rare(batch("cancelled", total=2, completed=1, cancelled=1), 1),
        ({**batch("failed", total=2, invalid=2), "error": {"code": "invalid_lines", "message": "none is"}}, 1),
        (batch(paused="canary", total=2, completed=1, waiting=1), 4),
    ],
)
def test_the_exit_code_tells_whether_every_line_completed(
    planq: Planq, server: Recorder, last: dict[str, Any], code: int
) -> None:
    server.answer_in_turn(f"/batches/{ID}", batch(total=2), last)

    told = planq("batch", "watch", ID)
    data = planq("batch", "watch", ID, "--json")
    status = planq("batch", "status", ID)

    assert (told.exit_code, data.exit_code, status.exit_code) == (code, code, code)
    assert json.loads(data.stdout) == last
    assert status.stdout == told.stdout
    if last["paused_at"]:
        assert f"planq batch resume {ID}" in told.stderr
    if last["error"]:
        assert "invalid_lines: none is" in told.stderr


def test_a_paused_batch_is_followed_while_lines_of_it_run(planq: Planq, server: Recorder) -> None:
    running = batch(paused="asked", total=2, running=1, waiting=1)
    server.answer_in_turn(f"/batches/{ID}", running, batch(paused="asked", total=2, completed=1, waiting=1))

    told = planq("batch", "watch", ID)

    assert "in_progress, paused (asked): 1/2 lines, 1 completed" in told.stdout


def test_the_status_of_a_batch_that_goes_on_is_told_at_once(planq: Planq, server: Recorder) -> None:
    server.answer(200, batch(paused="asked", total=2, running=1, waiting=1))

    told, data = planq("batch", "status", ID), planq("batch", "status", ID, "--json")

    assert (told.exit_code, data.exit_code) == (0, 0)
    assert told.stdout == f"batch {ID} in_progress, paused (asked): 0/2 lines\n"
    assert json.loads(data.stdout)["id"] == ID


def test_a_batch_that_is_not_to_start_tells_its_estimate(planq: Planq, server: Recorder, file: Path) -> None:
    told = {"model_calls": 2, "input_tokens": 100, "least_cost_usd": 0.0, "most_cost_usd": 0.5, "unpriced_lines": 0}
    server.answer(202, {**batch(paused="asked", total=1, waiting=1), "estimate": told})

    shown = planq("batch", "submit", str(file), "--no-start")

    assert (shown.exit_code, server.asked[0][1]) == (0, "/batches?start=false")
    assert "estimate: 2 model calls, 100 tokens asked, 0.0000 to 0.5000 USD" in shown.stderr


@pytest.mark.parametrize("action", ["cancel", "pause", "retry"])
def test_what_people_ask_of_a_batch(planq: Planq, server: Recorder, action: str) -> None:
    server.answer(200, batch("cancelling", total=2))

    told = planq("batch", action, ID)

    assert told.stdout == f"batch {ID} cancelling: 0/2 lines\n"
    assert server.asked[0][:2] == ("POST", f"/batches/{ID}/{action}")


def test_a_batch_is_resumed_with_a_larger_budget(planq: Planq, server: Recorder) -> None:
    server.answer(200, batch(total=2))

    assert planq("batch", "resume", ID, "--budget", "max_cost_usd=10", "--json").exit_code == 0
    assert planq("batch", "resume", ID).exit_code == 0
    wrong = planq("batch", "resume", ID, "--budget", "max_steps=10")

    assert [(path, body) for _, path, _, body in server.asked] == [
        (f"/batches/{ID}/resume", {"max_cost_usd": 10}),
        (f"/batches/{ID}/resume", {}),
    ]
    assert (wrong.exit_code, "expected max_cost_usd or max_tokens" in wrong.stderr) == (2, True)


def test_lines_are_printed_or_written_as_they_are(planq: Planq, server: Recorder, tmp_path: Path) -> None:
    lines = '{"id":"1","custom_id":"a","response":null}\n{"id":"2","custom_id":"é","response":null}\n'
    server.reply = (200, lines.encode())

    shown = planq("batch", "results", ID, "--order", "completion", "--status", "failed")
    written = planq("batch", "errors", ID, "--to", str(tmp_path / "errors.jsonl"))

    assert shown.stdout == lines
    assert (written.exit_code, written.stdout) == (0, "")
    assert (tmp_path / "errors.jsonl").read_text() == lines
    assert [path for _, path, _, _ in server.asked] == [
        f"/batches/{ID}/results?order=completion&status=failed",
        f"/batches/{ID}/errors",
    ]


def test_batches_are_listed(planq: Planq, server: Recorder) -> None:
    server.answer(200, {"items": [batch(paused="budget", total=9, invalid=1, completed=2)], "next_cursor": None})

    told = planq("batch", "list")

    assert told.stdout.split("  ") == [ID, "in_progress, paused (budget)", "2/8", "over[1m night\n"]


def test_a_file_that_is_not_there_is_told(planq: Planq, server: Recorder, tmp_path: Path) -> None:
    told = planq("batch", "submit", str(tmp_path / "none.jsonl"))

    assert (told.exit_code, "cannot read" in told.stderr, server.asked) == (2, True, [])


def test_the_estimate_says_what_it_does_not_know() -> None:
    told = {"model_calls": 4, "input_tokens": 100, "least_cost_usd": 0.1, "most_cost_usd": 0.5}
    known = {**batch(total=2), "estimate": {**told, "unpriced_lines": 1}}

    assert estimate_line(known) == (
        "estimate: 4 model calls, 100 tokens asked, 0.1000 to 0.5000 USD; without a known price: 1"
    )
    assert estimate_line(batch()) is None
    assert summary(batch("validating", total=2, unvalidated=2)) == "validating: 0/2 lines"
    ended = batch("completed", total=3, completed=2, partial=1, failed=1)
    assert summary(ended) == "completed: 3/3 lines, 2 completed (1 partial), 1 failed"
    cut = batch("completed", total=3, completed=3, partial=1, incomplete=2)
    assert summary(cut) == "completed: 3/3 lines, 3 completed (1 partial, 2 incomplete)"


def test_an_unknown_price_is_a_dash_and_not_zero() -> None:
    told = {"model_calls": 4, "input_tokens": 100, "least_cost_usd": None, "most_cost_usd": None, "unpriced_lines": 2}
    unknown = {**batch(total=2), "cost_usd": None, "tokens": 7, "estimate": told}

    assert estimate_line(unknown) == ("estimate: 4 model calls, 100 tokens asked, – USD; without a known price: 2")
    assert summary(unknown).endswith(", – USD")
    assert "USD" not in summary(batch(total=2))


def test_lines_at_the_provider_are_told(planq: Planq, server: Recorder) -> None:
    server.answer(200, batch(total=3, running=3, deferred=2))

    assert "0/3 lines, 2 at the provider" in planq("batch", "status", ID).stdout
