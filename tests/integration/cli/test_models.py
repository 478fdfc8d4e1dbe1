"""`planq models` against PostgreSQL and a server that refuses much."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from planq.deploy.cli.main import create_app
from planq.shared.agentic.models.adaptations import Adaptation
from planq.shared.platform.database import Database
from planq.shared.subjects.adaptations.store import AdaptationStore
from tests.integration.llm.dialects import OPENAI_CHAT
from tests.integration.llm.turns import calling
from tests.integration.llm.wire import Reply, WireServer

Planq = Callable[..., Result]


class Checked(WireServer):
    """Answers what it is asked for, and refuses a forced tool and a schema of the answer."""

    def next_reply(self, asked: Any) -> Reply:
        if asked.get("tool_choice") not in (None, "auto"):
            return Reply({"error": {"message": "Thinking mode does not support this tool_choice"}}, 400)
        if "response_format" in asked:
            return Reply({"error": {"message": "This response_format type is unavailable now"}}, 400)
        text = asked["messages"][-1]["content"]
        if asked.get("tools"):
            return Reply(calling(OPENAI_CHAT, "", ("add", {"a": 1, "b": 2})))
        return Reply(OPENAI_CHAT.reply('{"sum": 3}' if "sum" in text else "ok", None))


@pytest.fixture
def server() -> Iterator[Checked]:
    running = Checked()
    yield running
    running.close()


@pytest.fixture
def planq(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Checked) -> Planq:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("PLANQ_DATA", str(tmp_path / "no-data"))
    servers = {"openai@here": {"base_url": f"{server.url}/v1", "key": "sk-0123456789"}}
    monkeypatch.setenv("PLANQ_MODEL_SERVERS", json.dumps(servers))
    return lambda *arguments: CliRunner().invoke(create_app(), ["models", *arguments])


def test_refusals_are_listed_and_forgotten(planq: Planq, database_url: str) -> None:
    assert planq("list").stdout == "no server has refused anything\n"

    async def learn() -> None:
        async with Database(database_url, max_connections=1) as database:
            store = AdaptationStore(database)
            await store.learn("http://a/v1/", "m", Adaptation.UNFORCED_TOOL, "not in\nthinking mode")
            await store.learn("http://a/v1/", "n", Adaptation.MAX_TOKENS, "no")

    asyncio.run(learn())

    shown = planq("list").stdout
    assert [line.split()[:3] for line in shown.splitlines()] == [
        ["m", "http://a/v1/", "unforced_tool"],
        ["n", "http://a/v1/", "max_tokens"],
    ]
    first, _ = json.loads(planq("list", "--json").stdout)["items"]
    assert first["meaning"] == "the tool is offered, and not forced"
    assert first["refusal"] == "not in\nthinking mode"
    assert planq("forget", "m").stdout == "1 forgotten\n"
    assert json.loads(planq("forget", "--json").stdout) == {"forgotten": 1}
    assert json.loads(planq("list", "--json").stdout) == {"items": []}


def test_a_check_says_what_works_and_what_is_sent_instead(planq: Planq) -> None:
    done = planq("check", "openai@here:m", "--json")

    found = {one["probe"]: one for one in json.loads(done.stdout)["probes"]}
    assert {name: one["is_ok"] for name, one in found.items()} == {
        "plain": True,
        "stream": True,
        "one tool": True,
        "parallel tools": False,
        "forced tool": True,
        "JSON schema": True,
    }
    assert done.exit_code == 1
    assert found["forced tool"]["instead"] == ["the tool is offered, and not forced"]
    assert found["JSON schema"]["instead"] == ["the answer's schema is sent in the instructions"]
    assert found["parallel tools"]["found"].startswith("expected two calls in one reply, found 1 calls")
    assert "→ the tool is offered, and not forced" in planq("check", "openai@here:m").stdout


@pytest.mark.parametrize(
    ("model", "words"), [("offline", "expected a provider's model"), ("nobody:m", "unknown model"), ("", "unknown")]
)
def test_a_check_of_no_providers_model_is_refused(planq: Planq, model: str, words: str) -> None:
    done = planq("check", model)

    assert done.exit_code == 1
    assert words in " ".join(done.stderr.split())


def test_a_server_that_is_not_named_fails_the_check(planq: Planq) -> None:
    done = planq("check", "openai@elsewhere:m")

    assert done.exit_code == 1
    assert "PLANQ_MODEL_SERVERS" in done.stdout + done.stderr
