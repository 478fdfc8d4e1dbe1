"""Turns of several agents in one conversation: none takes in what is for another one, and each has its place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from planq.shared.agentic.agents.checks import NamedAgent
from planq.shared.agentic.turns.messages import Policy
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.wakes import Wake
from planq.shared.subjects.conversations.store import Arrival, InboundResult, OtherAgent
from tests.integration.store.test_turns import Talk, play

__all__ = ["play"]

Play = Callable[[Callable[[Talk], Awaitable[None]]], None]


async def asks(talk: Talk, agent: str, text: str, version: int = 1, **fields: Any) -> InboundResult:
    """Receive a message that names an agent, as the API has made a job for it."""
    given = {"agent": agent, "agent_version": version, "skill_versions": []}
    named = fields.pop("named_agent", NamedAgent(agent))
    return await talk.says(text, submission=given, named_agent=named, **fields)


@pytest.mark.parametrize("how", [{"debounce_ms": 60_000, "debounce_most_ms": 90_000}, {"policy": Policy.MERGE}])
def test_a_message_for_another_agent_is_not_added_to_a_turn_that_waits(play: Play, how: dict[str, Any]) -> None:
    async def scenario(talk: Talk) -> None:
        first = await talk.says("hello", strategy=Strategy.REACT)
        claim = await talk.claim(first)
        poet = await asks(talk, "poet", "a rhyme", **how)
        assert (poet.outcome, poet.begins) == (Arrival.ACCEPTED, False)
        more = await asks(talk, "poet", "and metre", **how)
        assert (more.outcome, more.job_id) == (
            Arrival.MERGED if "policy" in how else Arrival.GATHERED,
            poet.job_id,
        )
        critic = await asks(talk, "critic", "a doubt", **how)
        later = await asks(talk, "poet", "a second rhyme", **how)
        assert (critic.outcome, later.outcome) == (Arrival.ACCEPTED, Arrival.ACCEPTED), "in the order of messages"
        assert len({first.job_id, poet.job_id, critic.job_id, later.job_id}) == 4
        assert await talk.answers(claim) == (Wake.plan(poet.job_id, name="poet"),)
        claim = await talk.claim(poet)
        assert (claim.input, claim.agent_name) == ("a rhyme\nand metre", "poet")
        assert await talk.answers(claim) == (Wake.plan(critic.job_id, name="critic"),)

    play(scenario)


def test_a_message_for_another_agent_does_not_merge_with_the_turn_that_runs(play: Play) -> None:
    async def scenario(talk: Talk) -> None:
        first = await asks(talk, "poet", "a rhyme", strategy=Strategy.REACT)
        claim = await talk.claim(first)
        same = await asks(talk, "poet", "on trees", policy=Policy.MERGE)
        assert (same.outcome, same.job_id) == (Arrival.MERGED, first.job_id)
        newer = await asks(talk, "poet", "in prose", 2, policy=Policy.MERGE, named_agent=NamedAgent("poet", 2))
        nobody = await talk.says("hello", policy=Policy.MERGE)
        assert (newer.outcome, nobody.outcome) == (Arrival.ACCEPTED, Arrival.ACCEPTED)
        assert newer.job_id not in (first.job_id, nobody.job_id)
        assert nobody.job_id != first.job_id
        assert claim.agent_name == "poet"

    play(scenario)


def test_a_conversation_tells_which_agent_a_message_is_for(play: Play) -> None:
    async def scenario(talk: Talk) -> None:
        with pytest.raises(OtherAgent) as other:
            await talk.says("hello", default_agent=NamedAgent("poet"))
        assert other.value.agent == NamedAgent("poet")
        assert await talk.run("SELECT id FROM conversations") == [], "nothing is stored"
        given = {"agent": "poet", "agent_version": 1, "skill_versions": []}
        first = await talk.says("hello", submission=given, default_agent=NamedAgent("poet"))
        for version, seen in ((2, NamedAgent("poet", 1)), (1, None)):
            submission = {**given, "agent_version": version}
            if seen is None:
                again = await talk.says("again", submission=submission, default_agent=NamedAgent("poet"))
                assert again.conversation_id == first.conversation_id
                continue
            with pytest.raises(OtherAgent) as other:
                await talk.says("again", submission=submission, default_agent=NamedAgent("poet"))
            assert other.value.agent == seen
        await talk.run("UPDATE conversations SET agent = 'critic'")
        with pytest.raises(OtherAgent) as other:
            await talk.says("third", submission=given, default_agent=NamedAgent("poet"))
        assert other.value.agent == NamedAgent("critic")

    play(scenario)
