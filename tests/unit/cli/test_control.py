"""`pause`, `resume`, `fork`, `settle`, and what `status` says of them: what they send, print, and how they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from planq.api.cli.console import PlainConsole
from planq.api.jobs.commands.progress import ProgressPrinter
from tests.support.recorder import Recorder

ID = "01a1fc26-aa7a-7082-9f4d-2dd23711ed45"
OTHER = "01a1fc26-aa7a-7082-9f4d-2dd23711ed46"
ESCAPE = "\x1b]0;owned\x07[red]"
TIME = "2026-01-01T00:00:00+00:00"

Planq = Callable[..., Result]


def job(status: str, **fields: Any) -> dict[str, Any]:
    shape = {"id": ID, "status": status, "input": "", "steps": [], "created_at": TIME, "paused_at": None}
    return {**shape, "forked_from": None, "model_calls": 0, "usage": {}, **fields}


def step(index: int, status: str, **fields: Any) -> dict[str, Any]:
    return {"index": index, "tool_name": "mail", "status": status, "attempt": 0, "depends_on": [], **fields}


def asked(server: Recorder) -> list[tuple[str, str, Any]]:
    return [(method, path, body) for method, path, _, body in server.asked]


def test_pause_and_resume_tell_the_state(planq: Planq, server: Recorder) -> None:
    server.answer_in_turn(f"/jobs/{ID}/pause", job("executing", paused_at=TIME))
    server.answer_in_turn(f"/jobs/{ID}/resume", job("executing"))

    paused, resumed, again = planq("pause", ID), planq("resume", ID), planq("resume", ID, "--repeat-unsafe", "--json")

    assert (paused.exit_code, paused.stdout) == (0, f"job {ID} executing, paused\n")
    assert (resumed.exit_code, resumed.stdout) == (0, f"job {ID} executing\n")
    assert json.loads(again.stdout) == job("executing")
    assert asked(server) == [
        ("POST", f"/jobs/{ID}/pause", None),
        ("POST", f"/jobs/{ID}/resume", {"repeat_unsafe": False}),
        ("POST", f"/jobs/{ID}/resume", {"repeat_unsafe": True}),
    ]


def test_a_resume_that_would_repeat_an_unsafe_call_names_the_steps(planq: Planq, server: Recorder) -> None:
    doubt = {"step": 1, "tool_name": "mail", "code": "timeout", "message": f"too late {ESCAPE}"}
    problem = {"title": "Conflict", "detail": "step 1 may have", "code": "outcome_unknown", "errors": [doubt]}
    server.answer(409, problem)

    told, data = planq("resume", ID), planq("resume", ID, "--json")

    assert (told.exit_code, data.exit_code) == (1, 1)
    assert told.stderr.splitlines() == ["planq: Conflict: step 1 may have", "- $1 (mail): too late ]0;owned[red]"]
    assert json.loads(data.stdout)["error"]["code"] == "outcome_unknown"


def test_fork_sends_what_it_was_given_and_prints_the_new_id(planq: Planq, server: Recorder, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"calls": []}')
    server.answer(202, job("queued"))

    bare = planq("fork", OTHER)
    edited = planq("fork", OTHER, "--from-step", "2", "--plan", str(plan), "--repeat-unsafe")

    assert (bare.exit_code, bare.stdout) == (0, f"{ID}\n")
    assert edited.stdout == f"{ID}\n"
    assert asked(server) == [
        ("POST", f"/jobs/{OTHER}/fork", {}),
        ("POST", f"/jobs/{OTHER}/fork", {"from_step": 2, "plan": {"calls": []}, "repeat_unsafe": True}),
    ]


def test_fork_can_be_waited_for(planq: Planq, server: Recorder) -> None:
    taken = step(0, "succeeded", finished_at=TIME, reused_from={"job_id": OTHER, "index": 3})
    server.answer_in_turn(f"/jobs/{OTHER}/fork", job("queued"), status=202)
    server.answer_in_turn(f"/jobs/{ID}", job("failed", steps=[taken], plan={"calls": []}))

    result = planq("fork", OTHER, "--wait")

    assert result.exit_code == 1
    assert f"step $0 mail succeeded, as in {OTHER} $3" in result.stderr


def test_a_dry_run_tells_which_steps_would_run(planq: Planq, server: Recorder) -> None:
    preview = {
        "reuse": [{"index": 0, "tool_name": "look", "effect": "read", "reused_from": {"job_id": OTHER, "index": 4}}],
        "run": [{"index": 1, "tool_name": f"mail{ESCAPE}", "effect": "unsafe"}],
        "in_doubt": [],
    }
    server.answer(200, preview)

    told, data = planq("fork", OTHER, "--dry-run"), planq("fork", OTHER, "--dry-run", "--json")

    assert told.exit_code == 0
    assert [line.split() for line in told.stdout.splitlines()] == [
        ["$0", "look", "read", "takes", "over", "$4"],
        ["$1", "mail]0;owned[red]", "unsafe", "runs"],
    ]
    assert told.stderr == "nothing was stored\n"
    assert json.loads(data.stdout) == preview
    assert server.asked[0][3] == {"dry_run": True}


def test_a_dry_run_tells_which_calls_could_be_made_twice(planq: Planq, server: Recorder) -> None:
    mail = {"index": 0, "tool_name": "mail", "effect": "unsafe"}
    doubt = {**mail, "same_as": {"job_id": OTHER, "index": 3}}
    server.answer(200, {"reuse": [], "run": [mail], "in_doubt": [doubt]})

    told = planq("fork", OTHER, "--dry-run")

    assert (told.exit_code, told.stdout.split()[:4]) == (0, ["$0", "mail", "unsafe", "runs,"])
    assert "but $3 may have taken effect" in told.stdout
    assert told.stderr == "refused unless with --repeat-unsafe\nnothing was stored\n"


def test_settle_says_what_became_of_a_call(planq: Planq, server: Recorder, tmp_path: Path) -> None:
    output = tmp_path / "output.json"
    output.write_text('{"text": "ä"}')
    server.answer(200, job("executing"))

    results = [
        planq("settle", ID, "2", "happened", "--output", '{"text": "x"}'),
        planq("settle", ID, "2", "happened", "--output", f"@{output}"),
        planq("settle", ID, "2", "did-not-happen"),
        planq("settle", ID, "0", "unknown"),
    ]

    assert {(result.exit_code, result.stdout) for result in results} == {(0, f"job {ID} executing\n")}
    assert asked(server) == [
        ("POST", f"/jobs/{ID}/steps/2/settle", {"outcome": "happened", "output": {"text": "x"}}),
        ("POST", f"/jobs/{ID}/steps/2/settle", {"outcome": "happened", "output": {"text": "ä"}}),
        ("POST", f"/jobs/{ID}/steps/2/settle", {"outcome": "did_not_happen"}),
        ("POST", f"/jobs/{ID}/steps/0/settle", {"outcome": "unknown"}),
    ]


def test_an_output_that_breaks_the_schema_is_told_with_its_places(planq: Planq, server: Recorder) -> None:
    errors = [{"pointer": "/output/n", "message": "expected integer, found text"}]
    server.answer(422, {"title": "Unprocessable Content", "detail": "the output breaks", "errors": errors})

    result = planq("settle", ID, "0", "happened", "--output", "{}")

    assert result.exit_code == 1
    assert "- /output/n: expected integer, found text" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["pause", "nonsense"], 2, "UUID"),
        (["fork", ID, "--from-step", "-1"], 2, "--from-step"),
        (["fork", ID, "--dry-run", "--wait"], 2, "no job that could be waited for"),
        (["fork", ID, "--plan", "no/such/file"], 2, "the plan: cannot read"),
        (["settle", ID, "x", "unknown"], 2, "STEP"),
        (["settle", ID, "0", "perhaps"], 2, "perhaps"),
        (["settle", ID, "0", "happened", "--output", "{"], 1, "the output: expected JSON"),
        (["settle", ID, "0", "happened", "--output", "@no/such/file"], 2, "the output: cannot read"),
    ],
)
def test_wrong_usage_is_said_and_nothing_is_sent(
    planq: Planq, server: Recorder, arguments: list[str], code: int, said: str
) -> None:
    result = planq(*arguments)

    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr
    assert server.asked == []


def test_status_shows_a_pause_an_origin_and_a_question_with_the_command_that_answers_it(
    planq: Planq, server: Recorder
) -> None:
    steps = [
        step(0, "succeeded", reused_from={"job_id": OTHER, "index": 3}),
        step(1, "waiting", attempt=1, question={"kind": "outcome", "message": f"Did it\n{ESCAPE}?"}, depends_on=[0]),
    ]
    server.answer(200, job("input_required", steps=steps, paused_at=TIME, forked_from=OTHER))
    server.answer_in_turn(f"/jobs/{ID}/why", {"sentence": f"It has been {ESCAPE} paused."})

    result = planq("status", ID)
    shown = result.stdout

    assert f"job {ID} input_required, paused\nforked from {OTHER}\n" in shown
    assert f"$0  mail  succeeded  as in {OTHER} $3" in shown
    assert "$1 asks: Did it ]0;owned[red]?\n" in shown
    for answer in ("happened --output JSON", "did-not-happen", "unknown"):
        assert f"  planq settle {ID} 1 {answer}\n" in shown
    assert f"`planq resume {ID}` lets it go on" in result.stderr
    assert shown.endswith("\nIt has been ]0;owned[red] paused.\n")


def test_status_shows_what_the_jobs_below_ask(planq: Planq, server: Recorder) -> None:
    of_child = {"id": "q1", "job_id": OTHER, "step_index": 2, "kind": "form", "message": f"Where\n{ESCAPE}?"}
    cut_off = {**of_child, "id": "q2", "kind": "outcome", "message": "did it?"}
    own = {"id": "q3", "job_id": ID, "step_index": 0, "kind": "form", "message": "How long?"}
    steps = [step(0, "waiting", question={"id": "q3", "kind": "form", "message": "How long?"})]
    server.answer(200, job("input_required", steps=steps, open_questions=[of_child, cut_off, own]))
    server.answer_in_turn(f"/jobs/{ID}/why", {"sentence": "It waits."})

    shown = planq("status", ID).stdout

    assert f"{OTHER} $2 asks: Where ]0;owned[red]?\n  planq answer q1\n  planq answer q1 --decline\n" in shown
    assert f"{OTHER} $2 asks: did it?\n  planq settle {OTHER} 2 happened" in shown
    assert shown.count("planq answer q3\n") == 1


def test_a_list_of_jobs_tells_which_are_paused(planq: Planq, server: Recorder) -> None:
    server.answer(200, {"items": [job("executing", paused_at=TIME), job("executing")], "next_cursor": None})

    assert [", paused" in line for line in planq("jobs").stdout.splitlines()] == [True, False]


@pytest.mark.parametrize(
    ("status", "step_status", "is_offered"),
    [
        ("completed", "failed", True),
        ("failed", "failed", True),
        ("completed", "succeeded", False),
        ("cancelled", "failed", False),
        ("executing", "failed", False),
    ],
)
def test_status_offers_to_try_again_what_failed(
    planq: Planq, server: Recorder, status: str, step_status: str, is_offered: bool
) -> None:
    server.answer(200, job(status, steps=[step(0, step_status)]))

    assert (f"planq resume {ID}" in planq("status", ID).stderr) is is_offered


def test_a_question_is_told_once_while_a_job_is_followed() -> None:
    told = StringIO()
    printer = ProgressPrinter(PlainConsole(file=told, width=200))
    asking = step(0, "waiting", question={"message": "did it?"})

    printer.update(job("input_required", steps=[asking]))
    printer.update(job("input_required", steps=[asking], paused_at=TIME))
    printer.update(job("input_required", steps=[asking, step(1, "waiting", question={"message": "and it?"})]))

    lines = [line.strip() for line in told.getvalue().splitlines()]
    assert [line for line in lines if line.startswith("$")] == ["$0 asks: did it?", "$1 asks: and it?"]
    assert [line for line in lines if line.startswith("job")] == [
        "job input_required",
        "job input_required, paused",
        "job input_required",
    ]
