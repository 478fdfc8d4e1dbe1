"""A user who repairs, edits, holds and settles jobs on the command line, with real workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from planq.deploy.cli.main import create_app
from planq.deploy.local.valkey import EmbeddedValkey
from tests.support.servers import TestPostgres
from tests.support.stack import Stack
from tests.support.tiers import some
from tests.support.waiting import eventually

TOOLS = ",".join(f"tests.integration.cli.desk:{name}" for name in ("read", "mail", "sign", "visit"))
PATIENCE = 120.0


def call(name: str, text: str) -> dict[str, Any]:
    return {"tool_name": name, "arguments": {"text": text}}


@dataclass
class Desk:
    """The command line, the processes behind it, and the folder in which the tools keep their ledger."""

    stack: Stack
    folder: Path

    def planq(self, *arguments: str, given: str = "") -> Result:
        return CliRunner().invoke(create_app(), [*arguments, "--url", self.stack.url], input=given)

    def submit(self, *calls: dict[str, Any]) -> str:
        result = self.planq("submit", "--plan", "-", "--no-wait", given=json.dumps({"calls": calls}))
        assert result.exit_code == 0, result.output
        return result.stdout.strip()

    def ended(self, job_id: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.planq("status", job_id, "--wait", "--json").stdout)
        return document

    def seen(self, job_id: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.planq("status", job_id, "--json").stdout)
        return document

    def wait_for(self, job_id: str, status: str) -> None:
        eventually(lambda: self.seen(job_id)["status"] == status, PATIENCE, every=0.1, what=f"the job is {status}")

    def ledger(self, job_id: str) -> list[str]:
        with suppress(FileNotFoundError):  # nothing was called yet
            lines = (self.folder / "ledger").read_text("utf-8").splitlines()
            return [line.partition(" for ")[0] for line in lines if line.endswith(job_id)]
        return []


@pytest.fixture(scope="module")
def desk(postgres: TestPostgres, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One planq for all tests here; its leases are short, because one of them kills a worker."""
    database_url = postgres.create_migrated()
    folder = tmp_path_factory.mktemp("desk")
    env = {
        "PLANQ_TOOLS": TOOLS,
        "DESK_FOLDER": str(folder),
        "PLANQ_LEASE_SECONDS": "2",
        "PLANQ_HEARTBEAT_SECONDS": "0.5",
        "PLANQ_SWEEP_SECONDS": "0.2",
    }
    stack = Stack(tmp_path_factory.mktemp("stack"), database_url, valkey.url, env=env)
    try:
        stack.start()
        yield Desk(stack, folder)
    finally:
        stack.end()
        postgres.drop(database_url)


def test_a_failed_step_is_repaired_and_resumed_and_a_fork_repeats_only_what_was_edited(desk: Desk) -> None:
    closed = desk.folder / "closed"
    closed.touch()
    calls = [call("desk_read", "a"), call("desk_mail", "$0.output.text"), call("desk_mail", "b")]
    job_id = desk.submit(*calls)
    assert [step["status"] for step in desk.ended(job_id)["steps"]] == ["succeeded", "failed", "skipped"]
    shown = desk.planq("status", job_id)
    assert "the post office is closed" in shown.stdout
    assert f"planq resume {job_id}" in shown.stderr

    closed.unlink()
    resumed = desk.planq("resume", job_id)

    assert (resumed.exit_code, desk.ended(job_id)["status"]) == (0, "completed")
    assert desk.ledger(job_id) == ["read a", "mail <a>", "mail b"]
    assert desk.planq("resume", job_id).exit_code == 1

    edited = json.dumps({"calls": [*calls[:2], call("desk_mail", "c")]})
    preview = desk.planq("fork", job_id, "--plan", "-", "--dry-run", given=edited)
    forked = desk.planq("fork", job_id, "--plan", "-", given=edited)

    assert [line.split()[-1] for line in preview.stdout.splitlines()] == ["$0", "$1", "runs"]
    new_id = forked.stdout.strip()
    assert desk.ended(new_id)["status"] == "completed"
    assert desk.ledger(new_id) == ["mail c"]
    assert desk.ledger(job_id) == ["read a", "mail <a>", "mail b"]
    assert f"forked from {job_id}" in desk.planq("status", new_id).stdout


def test_a_fork_of_what_is_done_is_only_answered_again_and_one_with_defects_is_refused(desk: Desk) -> None:
    job_id = desk.submit(call("desk_mail", "x"))
    desk.ended(job_id)

    same = desk.planq("fork", job_id, "--wait")
    refused = desk.planq("fork", job_id, "--plan", "-", given='{"calls": [{"tool_name": "nope"}]}')

    assert same.exit_code == 0
    assert f"as in {job_id} $0" in same.stderr
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "unknown tool 'nope'" in refused.stderr


def test_a_paused_job_waits_until_it_is_resumed(desk: Desk) -> None:
    (desk.folder / "pen").unlink(missing_ok=True)
    job_id = desk.submit(call("desk_sign", "a"), call("desk_read", "b"))
    eventually(lambda: desk.ledger(job_id) == ["sign a"], PATIENCE, what="the first step runs")

    paused = desk.planq("pause", job_id)
    (desk.folder / "pen").touch()
    eventually(lambda: desk.seen(job_id)["steps"][0]["status"] == "succeeded", PATIENCE, every=0.1)

    assert paused.stdout == f"job {job_id} executing, paused\n"
    assert [step["status"] for step in desk.seen(job_id)["steps"]] == ["succeeded", "ready"]
    assert desk.ledger(job_id) == ["sign a"]
    assert desk.planq("resume", job_id).exit_code == 0
    assert desk.ended(job_id)["status"] == "completed"
    assert desk.ledger(job_id) == ["sign a", "read b"]


def test_two_questions_are_answered_in_reverse_order_over_http_and_here_while_a_worker_is_killed(desk: Desk) -> None:
    visits = [{**call("desk_visit", who), "depends_on": []} for who in ("ada", "bob")]
    job_id = desk.submit(*visits)
    eventually(lambda: len(asked(desk, job_id)) == 2, PATIENCE, every=0.1, what="both steps ask")
    ada, bob = sorted(asked(desk, job_id), key=lambda one: one["message"])

    desk.stack.kill("io-1")
    path, said = f"{desk.stack.url}/elicitations/{bob['id']}", {"action": "accept", "content": {"day": "friday"}}
    over_http = httpx.post(path, json=said, timeout=60)
    refused = desk.planq("answer", ada["id"], "--content", '{"day": 5}')
    here = desk.planq("answer", ada["id"], given="monday\n")
    late = desk.planq("answer", ada["id"], "--decline")
    desk.stack.run_worker("io")

    assert (over_http.status_code, over_http.json()["channel"]) == (200, "api")
    assert (refused.exit_code, here.exit_code, late.exit_code) == (1, 0, 1)
    assert "/content/day" in refused.stderr
    job = desk.ended(job_id)
    assert (job["status"], [step["attempt"] for step in job["steps"]]) == ("completed", [2, 2])
    assert sorted(desk.ledger(job_id)) == ["visit ada on monday", "visit bob on friday"]
    assert asked(desk, job_id) == []


def asked(desk: Desk, job_id: str) -> list[dict[str, Any]]:
    """What the steps of a job ask now."""
    items: list[dict[str, Any]] = json.loads(desk.planq("inbox", "--job", job_id, "--json").stdout)["items"]
    return items


@pytest.mark.parametrize("answer", some(["happened", "did-not-happen", "unknown"], "did-not-happen"))
def test_a_call_that_was_cut_off_by_a_killed_worker_is_settled(desk: Desk, answer: str) -> None:
    (desk.folder / "pen").unlink(missing_ok=True)
    job_id = desk.submit(call("desk_sign", "a"), call("desk_read", "$0.output.text"))
    eventually(lambda: desk.ledger(job_id) == ["sign a"], PATIENCE, what="the unsafe tool runs")
    desk.stack.kill("io-1")
    desk.stack.run_worker("io")
    desk.wait_for(job_id, "input_required")

    shown = desk.planq("status", job_id).stdout
    assert f"planq settle {job_id} 0 {answer}" in shown
    (desk.folder / "pen").touch()
    wrong = desk.planq("settle", job_id, "0", "happened", "--output", "{}")
    output = ["--output", '{"text": "by hand"}'] if answer == "happened" else []
    settled = desk.planq("settle", job_id, "0", answer, *output)

    assert (wrong.exit_code, settled.exit_code) == (1, 0)
    assert "'text'" in wrong.stderr
    job = desk.ended(job_id)
    expected = {
        "happened": (["succeeded", "succeeded"], ["sign a", "read by hand"]),
        "did-not-happen": (["succeeded", "succeeded"], ["sign a", "sign a", "read signed a"]),
        "unknown": (["failed", "skipped"], ["sign a"]),
    }
    assert ([step["status"] for step in job["steps"]], desk.ledger(job_id)) == expected[answer]
    # The same answer once more is no error, another one is.
    assert desk.planq("settle", job_id, "0", "unknown").exit_code == (0 if answer == "unknown" else 1)
    assert desk.planq("settle", job_id, "0", "happened", "--output", '{"text": "late"}').exit_code == 1
    if answer == "unknown":
        again = desk.planq("resume", job_id)
        assert again.exit_code == 1
        assert "$0 (desk_sign)" in again.stderr
        assert desk.planq("resume", job_id, "--repeat-unsafe").exit_code == 0
        assert desk.ended(job_id)["steps"][1]["status"] == "succeeded"
