"""The sample agents do what they are for, with a model that says what a test wants."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planq.shared.agentic.agents.document import parse_agent
from planq.testing import ScriptedModel, run_agent
from planq.worker.tools import tool
from planq.worker.tools.builtin import pure
from tests.support.stack import ROOT

SAMPLES = ROOT / "deploy" / "samples" / "agents"
STYLE = (SAMPLES / "skills" / "house-style.md").read_text()


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.glob("*.yaml")))
def test_each_sample_is_a_sound_document(name: str) -> None:
    assert f"{parse_agent((SAMPLES / name).read_text()).name}.yaml" == name


def test_what_the_dreamer_says_goes_to_the_tool_that_keeps_it() -> None:
    kept: list[Any] = []

    @tool(effect="idempotent")
    async def save_moments(
        dream_moments: list[dict[str, Any]],
        search_questions: list[str] | None = None,
        cross_session_themes: list[str] | None = None,
    ) -> dict[str, int]:
        """Keep moments."""
        kept.append((dream_moments, search_questions, cross_session_themes))
        return {"moments_count": len(dream_moments)}

    @tool(effect="read")
    async def get_moments() -> str:
        """Find moments."""
        return "none yet"

    moment = {"name": "dream-sailing", "summary": "They went sailing.", "topic_tags": ["sea"]}
    said = {"dream_moments": [moment], "search_questions": ["Where?"], "cross_session_themes": ["the sea"]}
    model = ScriptedModel([("get_moments", {})], json.dumps(said))

    run = run_agent(
        (SAMPLES / "DreamingAgent.yaml").read_text(), "What stays?", tools=[save_moments, get_moments], model=model
    )

    assert (run.status, run.output) == ("completed", said)
    assert kept == [([moment], ["Where?"], ["the sea"])]


def test_the_helper_looks_up_and_answers_in_its_own_words() -> None:
    @tool(effect="read")
    async def search(query: str) -> str:
        """Find documents."""
        return f"all about {query}"

    model = ScriptedModel([("search", {"query": "leases"})], "A lease is renewed by a heartbeat.")

    run = run_agent(
        (SAMPLES / "GeneralAgent.yaml").read_text(),
        "What is a lease?",
        skills={"house-style": STYLE},
        tools=[search],
        model=model,
    )

    assert (run.status, run.answer) == ("completed", "A lease is renewed by a heartbeat.")
    ask, _ = model.asked[0]
    assert ask.instructions[0] == STYLE
    assert "You help with whatever you are asked." in ask.instructions[-1]


def test_the_sample_agent_calculates() -> None:
    model = ScriptedModel([("calculate", {"expression": "6 * 7"})], "It is 42.")
    document = (SAMPLES / "SampleAgent.yaml").read_text()

    run = run_agent(document, "calculate 6 * 7", tools=[pure], model=model)

    assert (run.status, run.answer) == ("completed", "It is 42.")
    assert [step["output"] for step in run.steps] == [{"result": 42}]


@pytest.mark.parametrize("name", ["GeneralAgent", "DreamingAgent", "SampleAgent"])
def test_the_built_in_agents_are_among_the_samples(name: str) -> None:
    assert parse_agent((SAMPLES / f"{name}.yaml").read_text()).name == name
