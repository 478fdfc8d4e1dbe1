"""The sample team as people use it: applied from its folder, asked on the command line, looked at as a tree."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row
from typer.testing import CliRunner, Result

from planq.deploy.cli.main import create_app
from tests.e2e.test_main_job import broken_invariants, load_handbook
from tests.integration.llm.dialects import KEY, OPENAI_CHAT
from tests.integration.llm.wire import Reply, WireServer
from tests.support.stack import ROOT, Stack
from tests.support.waiting import eventually

SAMPLES = ROOT / "deploy" / "samples" / "agents"
BRIEF = ["submit", "--agent", "editor", "--action", "brief", "--with", '{"topic": "durable execution"}', "--json"]
FAST, SLOW, SILENT = "gpt-4.1-mini", "gpt-4.1", "gpt-4.1-nano"

Planq = Callable[..., Result]


@pytest.fixture
def planq(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Planq:
    """The command line on a stack that has the sample team."""
    monkeypatch.setenv("PLANQ_URL", stack.url)
    monkeypatch.delenv("PLANQ_API_KEY", raising=False)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(create_app(), arguments)

    applied = run("agents", "apply", str(SAMPLES))
    assert applied.exit_code == 0, applied.stderr
    return run


def parsed(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stdout + result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def got(stack: Stack, path: str) -> dict[str, Any]:
    answer = httpx.get(f"{stack.url}{path}", timeout=60)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def time_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_team_reads_and_doubts_at_the_same_time_and_then_writes(
    planq: Planq, stack: Stack, database_url: str
) -> None:
    load_handbook(database_url)

    job = parsed(planq(*BRIEF))

    assert job["status"] == "completed", job
    assert "a finished step never runs again" in job["answer"]
    assert "What happens when a process dies in the middle?" in job["answer"]
    tree = parsed(planq("status", "--tree", "--json", job["id"]))
    orchestration = tree["children"][0]["job"]
    done = {child["job"]["agent"]["name"]: child["job"] for child in orchestration["children"]}
    assert list(done) == ["researcher", "critic", "writer"]
    assert done["critic"]["created_at"] == done["researcher"]["created_at"], "one commit lets both begin"
    last = max(time_of(done[name]["finished_at"]) for name in ("researcher", "critic"))
    assert time_of(done["writer"]["created_at"]) >= last
    assert [one["depth"] for one in (tree, orchestration, *done.values())] == [0, 0, 1, 1, 1]
    for one in (orchestration, *done.values()):
        execution = got(stack, f"/executions/agents/{one['id']}")
        assert (execution["status"], execution["output"] is None) == ("completed", False)
    assert broken_invariants(database_url) == []


@pytest.mark.parametrize(
    ("agent", "asked"),
    [
        ("GeneralAgent", ["calculate 6 * 7"]),
        ("DreamingAgent", ["Ana moved to Lisbon. She had lived in Porto."]),
        ("SampleAgent", ["calculate 6 * 7"]),
    ],
)
def test_the_built_in_agents_run_without_a_models_key(planq: Planq, agent: str, asked: list[str]) -> None:
    job = parsed(planq("submit", "--agent", agent, *asked, "--json"))

    assert (job["status"], job["warnings"]) == ("completed", []), job
    assert job["answer"]


def test_a_sample_plan_of_a_prompt_alone_lets_a_model_hand_the_work_out(planq: Planq, database_url: str) -> None:
    load_handbook(database_url)

    job = parsed(planq("submit", "--plan", str(SAMPLES.parent / "plans" / "team.yaml"), "--json"))

    output = job["output"]
    assert output["success"], output
    assert [step["agent_id"] for step in output["steps"]] == ["critic", "researcher"]
    assert "a finished step never runs again" in json.dumps(output["steps"][1]["output"])


def test_an_extractors_answer_goes_to_its_chained_tool_without_another_model_call(
    planq: Planq, database_url: str
) -> None:
    text = "Ana moved to Lisbon. She had lived in Porto for ten years."

    job = parsed(planq("submit", "--agent", "extractor", text, "--json"))

    moment = {"name": "Ana moved to Lisbon.", "summary": "She had lived in Porto for ten years."}
    assert job["output"]["moments"][0] == moment
    assert json.loads(job["answer"]) == job["output"]
    assert (job["model_calls"], job["chained"]["tool_name"]) == (1, "save_moments")
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        saved = connection.execute("SELECT id::text, summary FROM moments ORDER BY name").fetchall()
        messages = connection.execute("SELECT kind, call_id, name, content FROM messages ORDER BY id").fetchall()
    assert sorted(job["chained"]["result"]["saved_moment_ids"]) == sorted(row["id"] for row in saved)
    assert [row["kind"] for row in messages] == ["tool_call", "tool_response"]
    assert {row["call_id"] for row in messages} == {job["chained"]["call_id"]}
    assert messages[0]["content"] == job["output"]


class ByModel(WireServer):
    """Answers by the model that is asked, once all three are: one in a moment, one never ends, one never begins."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = threading.Barrier(3)

    def next_reply(self, asked: Any) -> Reply:
        self._asked.wait(60)
        if asked["model"] == FAST:
            return Reply(OPENAI_CHAT.reply("The fast one says twelve.", None), pause=0.05)
        if asked["model"] == SILENT:
            return Reply(hang=True)
        return Reply(OPENAI_CHAT.reply("Twelve is three times four, and " * 20, None), count=6, then="hang")


@pytest.fixture
def model() -> Iterator[ByModel]:
    running = ByModel()
    yield running
    running.close()


def race(*agents: str) -> dict[str, Any]:
    """A job in which agents race."""
    group = {"merge_strategy": "first_success", "result_key": "won"}
    calls = [{"agent_id": name, "prompt": "What is 3 * 4?", "timeout_ms": 60_000} for name in agents]
    step = {"id": "race", "type": "parallel", "status": "pending", "parallel": {**group, "steps": calls}}
    call = {"tool_name": "cp__agent_orchestrate", "arguments": {"plan": {"id": "race", "steps": [step]}}}
    return {"model": "offline", "plan": {"calls": [call]}}


def recorded(stack: Stack, path: str) -> bool:
    """True once a job has made a model call."""
    calls: int = got(stack, path)["model_calls"]
    return calls == 1


def test_the_first_success_ends_a_race_and_the_losers_open_model_calls(
    make_stack: Callable[..., Stack], database_url: str, valkey_url: str, model: ByModel
) -> None:
    env = {"PLANQ_MODEL_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": KEY}
    stack = make_stack(database_url, valkey_url, env=env)
    stack.start()
    for name, its_model in (("hare", FAST), ("tortoise", SLOW), ("sphinx", SILENT)):
        document = {"name": name, "description": "You calculate.", "model": f"openai:{its_model}"}
        assert httpx.put(f"{stack.url}/agents/{name}", json=document, timeout=60).status_code == 201

    job_id = httpx.post(f"{stack.url}/jobs", json=race("tortoise", "sphinx", "hare"), timeout=60).json()["id"]
    job = got(stack, f"/jobs/{job_id}?wait=60")

    assert job["status"] == "completed", job
    assert job["steps"][0]["output"]["bindings"]["won"] == {"text": "The fast one says twelve."}
    orchestration = got(stack, f"/jobs/{job['children'][0]['id']}")
    *losers, winner = (got(stack, f"/jobs/{child['id']}") for child in orchestration["children"])
    assert ([loser["status"] for loser in losers], winner["status"]) == (["cancelled"] * 2, "completed")
    # The losers' models would have gone on for half a minute: by the database's clock nobody waited for them.
    (group,) = orchestration["steps"]
    won = time_of(winner["finished_at"])
    assert (time_of(group["finished_at"]) - won).total_seconds() < 15
    assert (time_of(job["finished_at"]) - won).total_seconds() < 15
    eventually(lambda: len(model.left_at) == 2, 60, what="the losers' connections are closed")
    for loser in losers:
        eventually(partial(recorded, stack, f"/jobs/{loser['id']}"), what="its cut-off call is recorded")
    usage = got(stack, f"/jobs/{losers[0]['id']}")["usage"]
    assert usage["input_tokens"] > 0
    assert usage["cost_usd"] > 0
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        tree = connection.execute("SELECT * FROM planq_tree_used(%s)", [job_id]).fetchone()
        each = "SELECT sum(cost_usd) AS cost, count(*) AS calls FROM model_calls"
        made = connection.execute(each.encode()).fetchone()
    assert tree is not None
    assert made is not None
    assert (tree["calls"], tree["cost"]) == (made["calls"], pytest.approx(float(made["cost"])))
    assert made["calls"] == 3, "those of the racers"
    assert broken_invariants(database_url) == []
