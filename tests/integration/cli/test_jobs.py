"""The commands of a job's life against the real API and real workers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from planq.deploy.cli.main import create_app
from planq.deploy.local.valkey import EmbeddedValkey
from tests.support.servers import TestPostgres
from tests.support.stack import ROOT, Stack
from tests.support.waiting import eventually

Planq = Callable[..., Result]

PLAN = {
    "calls": [
        {"tool_name": "calculate", "arguments": {"expression": "6*7"}},
        {"tool_name": "json_query", "arguments": {"data": {"n": "$0.output.result"}, "expression": "n"}},
    ]
}
BAD_PLAN = {
    "calls": [
        {"tool_name": "calculate", "arguments": {"expression": "$1.output.result"}},
        {"tool_name": "nope", "arguments": {}},
    ]
}


@pytest.fixture(scope="module")
def stack(
    postgres: TestPostgres, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """One planq for all tests here: they do not disturb each other, and each start takes seconds."""
    database_url = postgres.create_migrated()
    running = Stack(tmp_path_factory.mktemp("stack"), database_url, valkey.url)
    try:
        running.start()
        yield running
    finally:
        running.end()
        postgres.drop(database_url)


@pytest.fixture
def planq(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Planq:
    monkeypatch.setenv("PLANQ_URL", stack.url)
    monkeypatch.delenv("PLANQ_API_KEY", raising=False)

    def run(*arguments: str, given: str = "") -> Result:
        return CliRunner().invoke(create_app(), arguments, input=given)

    return run


def parsed(result: Result) -> dict[str, Any]:
    assert result.stderr == ""
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_a_job_from_submission_to_answer(planq: Planq) -> None:
    told = planq("submit", "calculate 6*7", "--metadata", "who=me")
    job = parsed(planq("jobs", "--json"))["items"][0]
    shown = planq("status", job["id"])

    assert told.exit_code == shown.exit_code == 0
    assert "42" in told.stdout
    assert "step $0 calculate succeeded" in told.stderr
    assert job["metadata"] == {"who": "me"}
    assert f"job {job['id']} completed" in shown.stdout
    assert "$0  calculate  succeeded" in shown.stdout


def test_a_plan_of_the_callers_own_needs_no_planning_call(planq: Planq) -> None:
    job = parsed(planq("submit", "--plan", "-", "--json", given=json.dumps(PLAN)))

    asked = parsed(planq("submit", "--plan", "-", "--respond", "model", "--json", given=json.dumps(PLAN)))

    assert (job["status"], job["outcome"], job["model_calls"]) == ("completed", "succeeded", 0)
    assert job["output"] == job["steps"][0]["output"] == {"result": 42}
    assert json.loads(job["answer"]) == {"result": 42}
    assert (asked["outcome"], asked["model_calls"], asked["output"]) == ("succeeded", 1, None)


def test_a_job_is_submitted_with_settings_of_its_model_calls(planq: Planq) -> None:
    given = ("temperature=0.2", "thinking=low", 'stop=["END"]')
    options = [option for one in given for option in ("--model-setting", one)]

    job = parsed(planq("submit", "calculate 6*7", *options, "--json"))
    refused = planq("submit", "calculate 6*7", "--model-setting", "temperature=hot")

    assert job["model_settings"] == {"temperature": 0.2, "thinking": "low", "stop": ["END"]}
    assert refused.exit_code != 0
    assert "model_settings.temperature" in refused.stderr


def test_a_job_is_watched_and_its_log_printed(planq: Planq) -> None:
    good = parsed(planq("submit", "--plan", "-", "--json", given=json.dumps(PLAN)))["id"]

    watched, printed, lines = planq("watch", good), planq("logs", good), planq("watch", good, "--json")

    assert (watched.exit_code, printed.exit_code, lines.exit_code) == (0, 0, 0)
    told = printed.stdout.splitlines()
    assert told[0].endswith(" s  job submitted")
    assert any(line.endswith(" s  step started $0 calculate 1") for line in told), told
    assert told[-1].endswith(" s  job completed")
    assert watched.stdout.splitlines()[: len(told)] == told
    assert "42" in watched.stdout, "the answer"
    *events, last = [json.loads(line) for line in lines.stdout.splitlines()]
    assert len(events) == len(told)
    assert {event["data"]["job_id"] for event in events} == {good}
    assert (last["id"], last["event"], last["data"]["status"]) == (None, "job", "completed")


def test_what_is_watched_and_has_failed_ends_with_its_code(planq: Planq) -> None:
    broken = {"calls": [{"kind": "abort", "reason": "because"}]}
    bad = json.loads(planq("submit", "--plan", "-", "--json", given=json.dumps(broken)).stdout)["id"]

    watched = planq("watch", bad)

    assert watched.exit_code == 1
    assert "because" in watched.stdout
    assert planq("logs", bad, "--follow").exit_code == 0
    assert planq("watch", "01a1fc26-aa7a-7082-9f4d-2dd23711ed45").exit_code == 1


def test_a_batch_from_its_file_to_its_results(planq: Planq, tmp_path: Path) -> None:
    """A canary of one line, the rest on request; a line that fails is told, and fails again when it is retried."""
    file = tmp_path / "requests.jsonl"
    bodies = [{"input": "calculate 6*7"}, {"plan": PLAN}, {"plan": {"calls": [{"kind": "abort", "reason": "why"}]}}]
    lines = [json.dumps({"custom_id": f"no {n}", "body": body}) for n, body in enumerate(bodies)]
    file.write_text("\n".join([*lines, "{"]))

    first = planq("batch", "submit", str(file), "--canary", "1", "--name", "nightly")
    batch_id = first.stdout.split()[1]
    rest, followed = planq("batch", "resume", batch_id), planq("batch", "watch", batch_id)
    results, errors = planq("batch", "results", batch_id), planq("batch", "errors", batch_id)
    retried, ended = planq("batch", "retry", batch_id), planq("batch", "watch", batch_id)
    late = planq("batch", "cancel", batch_id)

    assert (first.exit_code, "paused (canary): 1/3 lines, 1 completed" in first.stdout) == (4, True), first.output
    assert (rest.exit_code, retried.exit_code, followed.exit_code, ended.exit_code) == (0, 0, 1, 1)
    assert "completed: 3/3 lines, 2 completed, 1 failed, 1 invalid" in followed.stdout
    assert followed.stdout == ended.stdout
    told = [json.loads(line) for line in results.stdout.splitlines()]
    jobs = {one["custom_id"]: one["response"]["body"] for one in told}
    assert [one["custom_id"] for one in told] == ["no 0", "no 1", "no 2"]
    assert ("42" in jobs["no 0"]["answer"], jobs["no 1"]["status"], jobs["no 0"]["priority"]) == (
        True,
        "completed",
        "bulk",
    )
    assert [(one["line"], one["error"]["code"]) for one in map(json.loads, errors.stdout.splitlines())] == [
        (3, "aborted"),
        (4, "malformed_json"),
    ]
    assert f"{batch_id}  completed  3/3  nightly" in planq("batch", "list").stdout
    assert (late.exit_code, "409" in late.stderr or "Conflict" in late.stderr) == (1, True)


def test_a_batch_that_is_partial_ends_so_and_tries_such_lines_again(planq: Planq, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    asked = {"good": "calculate 6*7", "poor": "calculate 1/0"}
    lines = [json.dumps({"custom_id": name, "body": {"input": text}}) for name, text in asked.items()]
    file.write_text("\n".join(lines))

    sent = planq("batch", "submit", str(file))
    batch_id = sent.stdout.split()[1]
    errors, retried = planq("batch", "errors", batch_id), planq("batch", "retry", batch_id)
    again = planq("batch", "watch", batch_id)

    assert (sent.exit_code, "2/2 lines, 2 completed (1 partial)" in sent.stdout) == (3, True), sent.output
    told = [json.loads(line) for line in errors.stdout.splitlines()]
    assert [(one["custom_id"], one["status"], one["error"]["step"]) for one in told] == [("poor", "completed", 0)]
    assert "in_progress: 1/2 lines, 1 completed" in retried.stdout
    assert (again.exit_code, "2 completed (1 partial)" in again.stdout) == (3, True), again.output


WORKFLOW = """\
vars: {iteration: 0}
exec:
  post: {iteration: "${iteration + 1}"}
  goto: {when: iteration < 2 && len(plan.steps) > 0, task: loop}
  onError:
    action: json/query
    input: {expression: "[0]", data: ["${step.name} failed"]}
  abort: true
postproc:
  action: json.query
  when: len(results) > 0
  input: {expression: result, data: "${results[-1].result}"}
"""


def test_a_workflow_is_imported_and_its_loop_runs(planq: Planq, tmp_path: Path) -> None:
    (tmp_path / "workflow.yaml").write_text(WORKFLOW)
    block = str(tmp_path / "loop.yaml")
    asked = ["--strategy", "loop", "--loop", block, "--tools", "calculate,json.query", "--json"]

    written = planq("loops", "import", str(tmp_path / "workflow.yaml"), "-o", block)
    job = parsed(planq("submit", "calculate 6*7", *asked))
    failing = parsed(planq("submit", "calculate 1/0", *asked))

    assert written.exit_code == 0, written.output
    assert (job["status"], job["stop_reason"], job["strategy"]) == ("completed", "answered", "loop")
    assert [(step["tool_name"], step["output"]) for step in job["steps"]] == [
        ("calculate", {"result": 42}),
        ("json_query", {"result": 42}),
    ]
    assert "42" in job["answer"]
    assert (failing["status"], failing["error"]["code"]) == ("failed", "aborted")
    assert [step["status"] for step in failing["steps"]] == ["failed", "succeeded"]
    assert failing["steps"][1]["output"] == {"result": "calculate failed"}


def test_the_same_key_gives_the_same_job_and_another_body_is_a_conflict(planq: Planq) -> None:
    first = planq("submit", "calculate 1", "--idempotency-key", "k", "--no-wait")
    again = planq("submit", "calculate 1", "--idempotency-key", "k", "--no-wait")
    other = planq("submit", "calculate 2", "--idempotency-key", "k", "--no-wait")

    assert first.stdout == again.stdout
    assert (other.exit_code, other.stdout) == (1, "")
    assert "Conflict" in other.stderr


def test_an_invalid_plan_is_refused_with_all_its_errors_by_submit_and_validate(planq: Planq) -> None:
    refused = planq("submit", "--plan", "-", given=json.dumps(BAD_PLAN))
    checked = planq("validate", "-", given=json.dumps(BAD_PLAN))
    good = planq("validate", "-", given=json.dumps(PLAN))

    assert refused.exit_code == checked.exit_code == 1
    for told in (refused.stderr, checked.stdout):
        assert "Call 0, argument '/expression'" in told
        assert "unknown tool 'nope'" in told
    assert (good.exit_code, good.stdout) == (0, "the plan is valid\n")


AGENTS = """
steps:
  - id: nap
    type: agent
    status: pending
    agent: {agent_id: napper, action_id: sleep, timeout_ms: 400}
    transitions: {failure_branch_ids: []}
"""
NAPPER = {"name": "napper", "tools": ["wait"], "actions": {"sleep": {"prompt": "wait 300 seconds"}}}


def test_a_plan_of_agents_in_yaml_that_did_not_succeed_is_partial(planq: Planq, tmp_path: Path) -> None:
    (tmp_path / "napper.json").write_text(json.dumps(NAPPER))
    (tmp_path / "plan.yaml").write_text(AGENTS)
    assert planq("agents", "apply", str(tmp_path / "napper.json")).exit_code == 0

    submitted = planq("submit", "--plan", str(tmp_path / "plan.yaml"), "--json")
    job = parsed(submitted)
    ends = [planq(command, job["id"], *more) for command, *more in (["status"], ["status", "--wait"], ["watch"])]
    given = planq("submit", "--plan", "-", "--json", given=AGENTS)
    answered = planq("submit", "and now?", "--plan", "-", "--respond", "model", "--json", given=AGENTS)
    broken = planq("submit", "--plan", "-", given="steps:\n  - id: [\n")
    (tmp_path / "line.jsonl").write_text(json.dumps({"custom_id": "a", "body": {"plan": job["plan"]}}))
    batch = planq("batch", "submit", str(tmp_path / "line.jsonl"))

    assert (job["status"], job["outcome"], job["output"]["success"]) == ("completed", "succeeded", False)
    assert [one.exit_code for one in (submitted, *ends, given, answered)] == [3, 3, 3, 3, 3, 0]
    assert (batch.exit_code, "1 completed (1 partial)" in batch.stdout) == (3, True), batch.stdout
    assert broken.exit_code == 1
    assert "-:3: not valid YAML" in broken.stderr


def test_cancelling_ends_a_job_that_waits(planq: Planq) -> None:
    job_id = planq("submit", "wait 300 seconds", "--no-wait").stdout.strip()

    cancelled = planq("cancel", job_id)
    followed = planq("status", job_id, "--wait")

    assert (cancelled.exit_code, followed.exit_code) == (0, 1)
    assert "job cancelled" in followed.stderr
    assert job_id in [one["id"] for one in parsed(planq("jobs", "--status", "cancelled", "--json"))["items"]]


def test_an_interrupt_leaves_the_job_running(planq: Planq, stack: Stack, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = [sys.executable, "-m", "planq.deploy.cli.main", "submit", "wait 299 seconds", "--url", stack.url]
    with told.open("wb") as err:
        process = subprocess.Popen(command, cwd=ROOT, stderr=err)
    eventually(lambda: "job executing" in told.read_text(), 60)

    process.send_signal(signal.SIGINT)

    assert process.wait(60) == 130
    assert "goes on" in told.read_text()
    job = parsed(planq("jobs", "--status", "executing", "--json"))["items"][0]
    assert job["input"] == "wait 299 seconds"
    assert planq("cancel", job["id"]).exit_code == 0


def test_what_has_ended_cannot_be_cancelled_and_what_is_not_there_is_not_found(planq: Planq) -> None:
    job_id = parsed(planq("submit", "calculate 1", "--json"))["id"]

    assert planq("cancel", job_id).exit_code == 1
    unknown = planq("status", "00000000-0000-7000-8000-000000000000")
    assert unknown.exit_code == 1
    assert "Not Found" in unknown.stderr


def test_refused_fields_are_named(planq: Planq) -> None:
    unknown_tool = planq("submit", "x", "--tool", "nope")
    unknown_limit = planq("submit", "x", "--limit", "steps=1")
    empty = planq("submit", " ")

    assert unknown_tool.exit_code == unknown_limit.exit_code == empty.exit_code == 1
    assert "'nope'" in unknown_tool.stderr
    assert "limits.steps" in unknown_limit.stderr
    assert "white space" in empty.stderr


def test_tools_are_those_that_the_workers_published(planq: Planq) -> None:
    names = {tool["name"] for tool in parsed(planq("tools", "--json"))["items"]}

    assert {"calculate", "knowledge_search", "write_report", "now", "wait", "json_query", "http_fetch"} <= names
    assert "effect class  pure" in planq("tools", "calculate").stdout


def test_a_reminder_becomes_a_job_that_runs_by_itself(planq: Planq) -> None:
    arguments = {"description": "calculate 6*7", "delay_seconds": 0.2, "name": "the sum"}
    plan = {"calls": [{"tool_name": "remind_me", "arguments": arguments}]}
    asked = planq("submit", "--json", "--plan", "-", given=json.dumps(plan))
    assert parsed(asked)["status"] == "completed", asked.stdout

    def fired() -> dict[str, Any] | None:
        (found,) = parsed(planq("schedules", "list", "--all", "--json"))["items"]
        return found if found["last_job_id"] else None

    schedule = eventually(fired, 60, what="the reminder is fired")
    job = parsed(planq("status", schedule["last_job_id"], "--wait", "--json"))

    assert (job["status"], job["steps"][0]["output"]) == ("completed", {"result": 42})
    assert job["metadata"]["schedule"]["name"] == "the sum"
    assert planq("schedules", "list").stdout == ""
