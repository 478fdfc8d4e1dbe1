"""What an MCP server asks, through the whole engine: its worker and its server go, others take the answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planq.shared.kernel.questions import QuestionAnswer, after_answer
from planq.shared.kernel.states import QuestionKind, QuestionStatus, StepKind
from planq.shared.subjects.jobs.store import AnsweredBy
from planq.shared.subjects.questions.store import QuestionStore
from tests.integration.tools.mcp_probe import SERVERS, connected
from tests.support.harness import Harness, ScriptedModel

STATE = 'opaque "1" é=='


@pytest.mark.parametrize(
    ("tool", "kind", "content", "said"),
    [
        (
            "book",
            QuestionKind.FORM,
            {"city": "Pisa"},
            {"where": {"action": "accept", "content": {"city": "Pisa"}}},
        ),
        ("sign", QuestionKind.URL, {}, {"door": {"action": "accept"}}),
    ],
)
def test_an_answer_reaches_the_server_after_worker_and_server_were_started_anew(
    play: Callable[..., Any], tmp_path: Path, tool: str, kind: QuestionKind, content: Any, said: Any
) -> None:
    env = {"ASKER_FOLDER": str(tmp_path)}
    entry = {"command": sys.executable, "args": [str(SERVERS / "asker.py")], "env": env}

    async def scenario(first: Harness) -> Any:
        async with connected(tmp_path, s=entry) as toolbox:
            asking = Harness(first.database, ScriptedModel(), toolbox.tools())
            await asking.open()
            job, _ = await asking.run(plan={"calls": [{"tool_name": f"s_{tool}", "arguments": {}}]})
            assert job["status"] == "input_required"
        questions = QuestionStore(first.database)
        (question,) = await questions.page("default", status=QuestionStatus.OPEN, limit=10)
        assert (question["kind"], question["details"]["server"]) == (kind, "s")
        async with connected(tmp_path, s=entry) as toolbox:
            going_on = Harness(first.database, ScriptedModel(), toolbox.tools())
            await going_on.open()
            answer = QuestionAnswer(kind, QuestionStatus.ACCEPTED, content)
            after = after_answer(answer, StepKind.TOOL)
            asked = await questions.answer("default", question["id"], answer, after, AnsweredBy("ada", "test", None))
            await going_on.publish(asked.wakes)
            await going_on.drain()
            return await going_on.requests.job("default", job["id"])

    job, steps = play(scenario, ScriptedModel())
    assert (job["status"], [step["status"] for step in steps]) == ("completed", ["succeeded"])
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text("utf-8").splitlines()]
    assert [(call["state"], call["responses"]) for call in calls] == [(None, {}), (STATE, said)]
