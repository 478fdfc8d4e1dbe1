"""The commands against an API that says what it is told: what they send, print, and how they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from planq.api.jobs.commands import progress
from tests.support.pictures import PNG, base64_of
from tests.support.ports import free_port
from tests.support.recorder import Recorder

ID = "01a1fc26-aa7a-7082-9f4d-2dd23711ed45"
USAGE = {"input_tokens": 3, "output_tokens": 4, "cost_usd": None}
ESCAPE = "\x1b]0;owned\x07[red]"

Planq = Callable[..., Result]


def job(status: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "status": status,
        "outcome": {"completed": "succeeded", "failed": "failed", "cancelled": "cancelled"}.get(status),
        "input": "hello",
        "answer": None,
        "error": None,
        "plan": None,
        "steps": [],
        "model_calls": 1,
        "usage": USAGE,
        "created_at": "2026-01-01T00:00:00+00:00",
        **fields,
    }


TOOL = {
    "name": "web_fetch",
    "description": f"Fetch {ESCAPE}",
    "input_schema": {"type": "object"},
    "output_schema": None,
    "effect": "read",
    "pool": "io",
    "timeout_seconds": 60.0,
    "retries": 2,
    "skill_id": None,
    "source": "mcp:web",
}


def test_submit_sends_what_is_attached(planq: Planq, server: Recorder, tmp_path: Path) -> None:
    picture = tmp_path / "dot.png"
    picture.write_bytes(PNG)
    server.answer(202, job("queued"))

    url = "https://example.org/a.pdf"
    done = planq("submit", "what is it?", "--attach", str(picture), "--attach", url, "--no-wait")

    assert done.exit_code == 0, done.output
    sent = server.asked[-1][3]
    assert [part["type"] for part in sent["input"]] == ["text", "image", "file"]
    assert (sent["input"][1]["data"], sent["input"][2]["url"]) == (base64_of(PNG), url)
    missing = planq("submit", "--attach", str(tmp_path / "nothing.png"), "--no-wait")
    assert missing.exit_code != 0
    assert "cannot be read" in missing.stderr


def test_submit_sends_all_it_was_given_and_prints_the_id(planq: Planq, server: Recorder, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"calls": []}')
    server.answer(202, job("queued"))

    options = ["--model", "offline", "--tool", "a", "--tool", "b", "--limit", "max_tool_steps=3", "--limit", "x=0.5"]
    more = ["--metadata", "k=v=w", "--metadata", "e=", "--idempotency-key", "once", "--api-key", "key", "--no-wait"]
    shared = ["--budget", "max_tokens=5000", "--budget", "soft=0.5", "--budget", "ask=true"]
    result = planq("submit", "do it", "--plan", str(plan), *options, *more, *shared)

    assert (result.exit_code, result.stdout) == (0, f"{ID}\n")
    method, path, headers, body = server.asked[0]
    assert (method, path, headers["idempotency-key"], headers["authorization"]) == (
        "POST",
        "/jobs",
        "once",
        "Bearer key",
    )
    assert body == {
        "input": "do it",
        "plan": {"calls": []},
        "model": "offline",
        "tools": ["a", "b"],
        "limits": {"max_tool_steps": 3, "x": 0.5, "budget": {"max_tokens": 5000, "soft": 0.5, "ask": True}},
        "metadata": {"k": "v=w", "e": ""},
    }


def test_submit_tells_progress_beside_and_the_answer_on_standard_output(planq: Planq, server: Recorder) -> None:
    step = {"index": 0, "tool_name": f"t{ESCAPE}", "status": "running", "attempt": 1, "arguments": {"q": ESCAPE}}
    server.answer_in_turn("/jobs", job("queued"), status=202)
    server.answer_in_turn(
        f"/jobs/{ID}",
        job("executing", plan={"calls": []}, steps=[step]),
        job("completed", plan={"calls": []}, steps=[step | {"status": "succeeded"}], answer=f"42 {ESCAPE}"),
    )

    result = planq("submit", "hello")

    assert result.exit_code == 0
    assert result.stdout.startswith("42 ]0;owned[red]\n")
    assert "job completed" in result.stderr
    assert "\x1b" not in result.output
    assert "\x07" not in result.output


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (job("completed"), 0),
        (job("completed", outcome="partial"), 3),
        (job("completed", outcome="incomplete"), 4),
        (job("failed"), 1),
        (job("cancelled"), 1),
    ],
)
def test_submit_and_status_end_as_the_job_did(planq: Planq, server: Recorder, ended: Any, code: int) -> None:
    server.answer_in_turn("/jobs", job("queued"), status=202)
    server.answer_in_turn(f"/jobs/{ID}", job("executing"), ended)

    submitted = planq("submit", "hello", "--json")
    shown = planq("status", ID, "--json")

    assert submitted.exit_code == shown.exit_code == code
    assert json.loads(submitted.stdout) == json.loads(shown.stdout) == ended
    assert submitted.stderr == shown.stderr == ""
    assert "wait=" in server.asked[1][1]


def test_an_interrupt_says_that_the_job_goes_on(
    planq: Planq, server: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(progress, "follow_job", interrupted)
    server.answer(202, job("queued"))

    result = planq("submit", "hello")

    assert result.exit_code == 130
    assert f"planq status {ID} --wait" in result.stderr


def test_text_and_plan_come_from_standard_input_too(planq: Planq, server: Recorder) -> None:
    server.answer(202, job("completed"))

    planq("submit", "-", "--no-wait", given="größer\n")
    planq("submit", "--plan", "-", "--no-wait", given='{"calls": [1]}')

    assert [body for *_, body in server.asked] == [{"input": "größer\n"}, {"plan": {"calls": [1]}}]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["submit"], 2, "expected a text"),
        (["submit", "-", "--plan", "-"], 2, "cannot both come from standard input"),
        (["submit", "x", "--limit", "a"], 2, "expected NAME=VALUE"),
        (["submit", "x", "--limit", "a=nan"], 2, "expected a number"),
        (["submit", "x", "--budget", "max_steps"], 2, "expected NAME=VALUE"),
        (["submit", "x", "--budget", "max_steps=many"], 2, "max_steps: expected a number, found 'many'"),
        (["submit", "x", "--budget", "ask=yes"], 2, "ask: expected true or false, found 'yes'"),
        (["submit", "x", "--metadata", "=v"], 2, "expected NAME=VALUE"),
        (["submit", "--plan", "no/such/file"], 2, "the plan: cannot read 'no/such/file'"),
        (["submit", "x", "--url", "nonsense"], 2, "--url or PLANQ_URL"),
        (["status", "nonsense"], 2, "UUID"),
        (["jobs", "--status", "nonsense"], 2, "nonsense"),
        (["jobs", "--limit", "0"], 2, "--limit"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_wrong_usage_is_said_and_nothing_is_sent(
    planq: Planq, server: Recorder, arguments: list[str], code: int, said: str
) -> None:
    result = planq(*arguments)

    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""
    assert server.asked == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "line 1, column 2"),
        ('{"a": NaN}', "NaN"),
        ('{"a": 1e999}', "1e999"),
        ('{"calls": [{"tool_name": "now"}], "calls": []}', "/calls stands there more than once"),
        ("[" * 100_000, "nested too deeply"),
        (b"\xff", "expected UTF-8"),
        ("", "expected JSON"),
    ],
)
def test_a_plan_that_is_no_json_is_invalid_with_its_place(
    planq: Planq, server: Recorder, given: str | bytes, said: str
) -> None:
    result = planq("validate", "-", given=given)

    assert result.exit_code == 1
    assert said in result.stderr
    assert server.asked == []


def test_validate_prints_every_error_with_its_place(planq: Planq, server: Recorder) -> None:
    errors = [
        {"tool_index": 0, "argument": "", "template": None, "error": {"type": "self_reference"}},
        {
            "tool_index": 1,
            "argument": "/q",
            "template": f"$0.{ESCAPE}",
            "error": {"type": "self_reference"},
            "place": "/steps/1/args/q",
        },
    ]
    server.answer(200, {"valid": False, "errors": errors})

    told, data = planq("validate", "-", given="{}"), planq("validate", "-", "--json", given="{}")

    assert told.exit_code == data.exit_code == 1
    assert "2 errors" in told.stdout
    assert "- Call 0: " in told.stdout
    assert "- standard input#/steps/1/args/q: Call 1, argument '/q'" in " ".join(told.stdout.split())
    assert "\x1b" not in told.output
    assert json.loads(data.stdout) == {"valid": False, "errors": errors}


def test_a_plan_in_yaml_is_checked_and_each_error_has_its_line(
    planq: Planq, server: Recorder, tmp_path: Path
) -> None:
    plan, broken = tmp_path / "plan.yaml", tmp_path / "broken.yml"
    plan.write_text("intention: look\nsteps:\n  - name: a\n    args:\n      q: $9.output.x\n")
    broken.write_text("steps:\n  - {name: a\n")
    error = {"tool_index": 0, "argument": "/q", "template": "$9.output.x", "error": {"type": "self_reference"}}
    server.answer(200, {"valid": False, "errors": [{**error, "place": "/steps/0/args/q"}]})

    told, refused = planq("validate", str(plan)), planq("validate", str(broken))

    sent = {"intention": "look", "steps": [{"name": "a", "args": {"q": "$9.output.x"}}]}
    assert server.asked[0][3]["plan"] == sent
    assert "plan.yaml:5#/steps/0/args/q: Call 0" in "".join(told.stdout.split("\n"))
    assert refused.exit_code == 1
    assert "broken.yml:3: not valid YAML" in refused.stderr
    assert len(server.asked) == 1


def test_a_valid_plan_ends_well(planq: Planq, server: Recorder) -> None:
    server.answer(200, {"valid": True, "errors": []})

    result = planq("validate", "-", given="{}")

    assert (result.exit_code, result.stdout) == (0, "the plan is valid\n")


def test_a_valid_plan_says_how_many_steps_after_its_question_are_left_out(planq: Planq, server: Recorder) -> None:
    server.answer(200, {"valid": True, "form": "typed_steps", "dropped": 2, "errors": []})

    assert "steps left out: 2" in planq("validate", "-", given="{}").stdout


def test_jobs_reads_page_after_page_up_to_its_limit(planq: Planq, server: Recorder) -> None:
    page = [job("completed", input=f"line\n{ESCAPE}")] * 100
    server.answer_in_turn(
        "/jobs", {"items": page, "next_cursor": "c"}, {"items": page[:50], "next_cursor": "d"}, {"never": "asked"}
    )

    result = planq("jobs", "--limit", "150", "--status", "completed", "--json")

    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["items"]) == 150
    assert json.loads(result.stdout)["next_cursor"] == "d"
    assert [path for _, path, _, _ in server.asked] == [
        "/jobs?roots=true&status=completed&limit=100",
        "/jobs?roots=true&status=completed&limit=50&cursor=c",
    ]


def test_jobs_of_agents_name_them_and_children_are_left_out_unless_asked_for(planq: Planq, server: Recorder) -> None:
    agent = {"name": "writer", "version": 2}
    server.answer(
        200, {"items": [job("failed", agent=agent), job("failed", agent=agent, input="")], "next_cursor": None}
    )

    lines = planq("jobs", "--children").stdout.splitlines()

    assert [line.partition("failed  ")[2] for line in lines] == ["writer: hello", "writer: (an action)"]
    assert server.asked[0][1] == "/jobs?limit=20"


def test_jobs_are_one_line_each(planq: Planq, server: Recorder) -> None:
    server.answer(200, {"items": [job("failed", input=f"a\nb {ESCAPE}")], "next_cursor": None})

    lines = planq("jobs").stdout.splitlines()

    assert len(lines) == 1
    assert lines[0].startswith(ID)
    assert lines[0].endswith("failed  a b ]0;owned[red]")


@pytest.mark.parametrize("tree", [(), ("--tree",)])
def test_status_shows_what_the_tree_has_used_of_its_budget(
    planq: Planq, server: Recorder, tree: tuple[str, ...]
) -> None:
    used = {"tokens": 1200, "cost_usd": 0.25, "model_calls": 3, "steps": 7}
    budget = {"max_tokens": 5000, "max_cost_usd": 1.5, "max_steps": None, "soft": 0.5, "used": used}
    server.answer(200, job("completed", answer="42", budget=budget))

    result = planq("status", ID, *tree)

    assert "budget: 1200 of 5000 tokens, 0.2500 of 1.5000 USD\n" in result.stdout
    server.answer(200, job("completed", answer="42", budget=None))
    assert "budget" not in planq("status", ID, *tree).stdout


def test_status_shows_the_steps_of_every_round_and_why_the_loop_ended(planq: Planq, server: Recorder) -> None:
    steps = [
        {"index": index, "round": index, "tool_name": "a", "status": "succeeded", "depends_on": []}
        for index in (0, 1)
    ]
    server.answer(200, job("completed", steps=steps, answer="42", stop_reason="max_rounds"))

    shown = planq("status", ID).stdout

    assert "round 0  $0  a  succeeded" in shown
    assert "round 1  $1  a  succeeded" in shown
    assert "stopped before the planner had finished: max_rounds" in shown
    server.answer(200, job("completed", steps=steps[:1], answer="42", stop_reason="answered"))
    shown = planq("status", ID).stdout
    assert "round" not in shown
    assert "stopped" not in shown


def test_status_offers_to_try_again_what_has_failed_unless_a_planner_was_shown_it(
    planq: Planq, server: Recorder
) -> None:
    steps = [{"index": 0, "round": 0, "tool_name": "a", "status": "failed", "depends_on": []}]
    server.answer(200, job("completed", steps=steps, answer="42"))
    assert f"planq resume {ID}" in planq("status", ID).output
    server.answer(200, job("completed", steps=steps, answer="42", stop_reason="answered"))
    assert "resume" not in planq("status", ID).output


def test_status_shows_steps_and_defects(planq: Planq, server: Recorder) -> None:
    steps = [
        {"index": 0, "tool_name": "a", "status": "succeeded", "attempt": 2, "worker_id": "w", "depends_on": []},
        {"index": 2, "tool_name": "c", "status": "running", "attempt": 3, "worker_id": "gone", "depends_on": []},
        {"index": 1, "tool_name": "b", "status": "failed", "depends_on": [0], "error": {"message": f"no {ESCAPE}"}},
    ]
    defect = {"tool_index": 1, "argument": "", "template": None, "error": {"type": "self_reference"}}
    refused = {"round": 0, "source": "model", "plan": None, "plan_errors": [defect], "steps": [0, 1]}
    server.answer(200, job("completed", steps=steps, rounds=[refused]))
    server.answer_in_turn("/workers", {"workers": [{"id": "w", "name": f"io@{ESCAPE}here"}]})

    shown = planq("status", ID)

    assert "$0  a  succeeded  attempt 2, worker io@]0;owned[red]here" in shown.stdout
    assert "$2  c  running    attempt 3, worker gone" in shown.stdout
    assert "after $0  no ]0;owned[red]" in shown.stdout
    assert "Call 1: a call cannot reference itself" in shown.stdout
    assert "\x1b" not in shown.output


def test_cancel_asks_and_tells_the_state(planq: Planq, server: Recorder) -> None:
    server.answer(200, job("cancelled"))

    result = planq("cancel", ID)

    assert (result.exit_code, result.stdout) == (0, f"job {ID} cancelled\n")
    assert server.asked[0][:2] == ("POST", f"/jobs/{ID}/cancel")


def test_tools_are_listed_and_one_is_shown_under_any_spelling(planq: Planq, server: Recorder) -> None:
    server.answer(200, {"items": [TOOL]})

    listed, shown = planq("tools"), planq("tools", "web.fetch")
    data, one, unknown = planq("tools", "--json"), planq("tools", "web_fetch", "--json"), planq("tools", "nope")

    assert listed.stdout == "web_fetch  read  io  Fetch ]0;owned[red]\n"
    assert "effect class  read" in shown.stdout
    assert json.loads(data.stdout) == {"items": [TOOL]}
    assert json.loads(one.stdout) == TOOL
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "published are web_fetch" in unknown.stderr


@pytest.mark.parametrize("command", [["jobs"], ["tools"], ["status", ID], ["cancel", ID], ["submit", "x"]])
def test_an_api_that_does_not_answer_is_named_with_what_to_do(planq: Planq, command: list[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    told, data = planq(*command, "--url", url), planq(*command, "--url", url, "--json")

    assert told.exit_code == data.exit_code == 2
    assert url in told.stderr
    assert "planq up" in told.stderr
    assert json.loads(data.stdout)["error"]["code"] == "unavailable"
    assert data.stderr == ""


@pytest.mark.parametrize(
    ("status", "problem", "code"),
    [
        (401, {"title": "Unauthorized", "detail": "expected a key", "code": "unauthorized"}, 2),
        (404, {"title": "Not Found", "detail": "there is no job", "code": "not_found"}, 1),
        (409, {"title": "Conflict", "detail": "it has ended", "code": "conflict"}, 1),
        (503, {"title": "Service Unavailable", "detail": "no database", "code": "database_unavailable"}, 2),
    ],
)
def test_a_refusal_is_printed_with_title_and_detail(
    planq: Planq, server: Recorder, status: int, problem: dict[str, Any], code: int
) -> None:
    server.answer(status, problem)

    result = planq("cancel", ID)

    assert result.exit_code == code
    assert result.stderr == f"planq: {problem['title']}: {problem['detail']}\n"
    assert result.stdout == ""
