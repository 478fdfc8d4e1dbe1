"""The tools that keep something, over a real database: it is found again, and a repeat changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.claims import StepClaim
from planq.shared.subjects.agents.store import DocumentStore
from planq.shared.subjects.moments.store import Piece, PostgresKnowledge, PostgresMemory
from planq.worker.engine.chain import after_release
from planq.worker.tools.registry import load_registry
from planq.worker.tools.services import ToolServices
from tests.support.claiming import claim_step
from tests.support.harness import Harness, ScriptedModel
from tests.support.stored import documents

Play = Callable[..., Any]
Read = Callable[..., list[dict[str, Any]]]
Call = tuple[str, Mapping[str, Any]]


@pytest.fixture
def read(database_url: str) -> Read:
    """`read(statement, *values)`: the rows of a statement."""

    def run(statement: str, *values: Any) -> list[dict[str, Any]]:
        with psycopg.connect(database_url, row_factory=dict_row, autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    return run


async def furnish(harness: Harness, **services: Any) -> None:
    """Give the harness the built-in tools over its database."""
    known = ToolServices(
        knowledge=PostgresKnowledge(harness.database), memory=PostgresMemory(harness.database), **services
    )
    loaded = load_registry(services=known, entry_point_group=None, modules=["planq.worker.tools.builtin"])
    harness.registry.extend([tool for d in loaded.definitions() if (tool := loaded.find(d.name)) is not None])
    await harness.worker_registry.publish_tools(documents(loaded.definitions()))


def plan(*calls: Call) -> dict[str, Any]:
    return {"type": "tool_calls", "calls": [{"tool_name": name, "arguments": arguments} for name, arguments in calls]}


async def outputs(harness: Harness, *calls: Call, **fields: Any) -> list[Any]:
    """Run a plan of the caller's and return the outputs of its steps, or the errors."""
    job, steps = await harness.run(plan=plan(*calls), **fields)
    assert steps, job["plan_errors"]
    return [step["output"] if step["error"] is None else step["error"] for step in steps]


async def begun(harness: Harness, call: Call) -> StepClaim:
    """Return the claim of the one step of a new job; nothing carries it out."""
    harness.dispatcher.wind_down()  # what follows a stage is published
    await harness.submit(plan=plan(call))
    await harness.run_one(harness.published.pop())
    wake = harness.published.pop()
    assert not wake.ref.is_stage
    claim = await claim_step(harness.store, wake.ref)
    assert claim is not None
    return claim


def context_of(claim: StepClaim) -> ToolContext:
    """Return what the tool of a claim is told."""
    return ToolContext(
        job_id=str(claim.ref.job_id),
        step_index=claim.ref.index,
        attempt=claim.attempt,
        tool_name=claim.tool_name,
        tenant_id=claim.tenant_id,
        user_id=claim.user_id,
        context_id="",
        request_id="",
        trace_id="",
        round=claim.ref.round,
    )


MOMENTS = [
    {
        "name": "dream-api-gateway-ml-pipeline-convergence",
        "summary": "The gateway and the pipeline share a queue.",
        "topic_tags": ["ml", "api"],
        "affinity_fragments": [{"target": "t"}],
        "starts_at": "2026-03-01T10:00:00+01:00",
    },
    {"name": "Lunch with Ana", "summary": "We spoke about sailing.", "tags": ["friends"]},
]


def test_moments_are_saved_once_and_found_by_words_tags_and_time(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness)
        saved = await outputs(harness, ("save_moments", {"dream_moments": MOMENTS}), user_id="ada")
        return saved + await outputs(
            harness,
            ("get_moments", {}),
            ("get_moments", {"query": "who likes to sail?"}),
            ("get_moments", {"tags": ["api", "ml"]}),
            ("get_moments", {"tags": ["api", "friends"]}),
            ("get_moments", {"since": "2026-03-01T09:00:00", "until": "2026-03-01T09:00:01"}),
            ("get_moments", {"until": "2026-03-01T09:00:00Z"}),
            user_id="ada",
        )

    saved, newest, sailing, tagged, crossed, timed, before = play(scenario, ScriptedModel())

    assert saved["names"] == ["Api Gateway Ml Pipeline Convergence", "Lunch With Ana"]
    assert (saved["status"], saved["moments_count"]) == ("success", 2)
    assert [str(row["id"]) for row in read("SELECT id FROM moments ORDER BY starts_at")] == saved["saved_moment_ids"]
    assert [one["name"] for one in newest["results"]] == ["Lunch With Ana", "Api Gateway Ml Pipeline Convergence"]
    assert [one["name"] for one in sailing["results"]] == ["Lunch With Ana"]
    assert sailing["results"][0]["score"] > 0
    assert [one["name"] for one in tagged["results"]] == ["Api Gateway Ml Pipeline Convergence"]
    assert tagged["results"][0]["details"] == {"affinity_fragments": [{"target": "t"}]}
    assert tagged["results"][0]["starts_at"] == "2026-03-01T09:00:00+00:00"
    assert (crossed["count"], timed["count"], before["count"]) == (0, 1, 0)


def test_what_a_dreaming_agent_says_is_kept_as_it_is(play: Play, read: Read) -> None:
    # Pins: `search_questions` beside the moments were refused, and so were no moments at all.
    said = {
        "dream_moments": [{"name": "dream-sailing", "topic_tags": ["sea"], "emotion_tags": ["calm"]}],
        "search_questions": ["Where does Ana sail?"],
        "cross_session_themes": ["the sea"],
    }

    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness)
        return await outputs(
            harness,
            ("save_moments", said),
            ("save_moments", {"dream_moments": [], "search_questions": [], "cross_session_themes": []}),
            ("get_moments", {"tags": ["sea"]}),
            user_id="ada",
        )

    saved, none, found = play(scenario, ScriptedModel())

    assert (saved["names"], none["moments_count"], none["saved_moment_ids"]) == (["Sailing"], 0, [])
    assert found["results"][0]["details"] == {
        "search_questions": ["Where does Ana sail?"],
        "cross_session_themes": ["the sea"],
        "emotion_tags": ["calm"],
    }


def test_a_repeated_attempt_saves_nothing_twice(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness)
        claim = await begun(harness, ("save_moments", {"moments": MOMENTS}))
        tool = harness.registry.find("save_moments")
        assert tool is not None
        before = await tool.call({"moments": MOMENTS}, context_of(claim))
        harness.published += after_release(claim, await harness.store.release(claim))
        await harness.drain()
        _, steps = await harness.requests.job("default", claim.ref.job_id)
        return [before, steps[0]["output"]]

    before, after = play(scenario, ScriptedModel())

    assert before == after
    assert len(read("SELECT 1 FROM moments")) == 2


def test_users_and_texts_stay_apart(play: Play) -> None:
    """One user finds nothing of another's; what looks like SQL, or holds NUL, is text."""
    odd = {"name": "'); DROP TABLE moments; --", "summary": "nul \x00 here: \\{{ $0.output.x }}"}

    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness)
        (saved,) = await outputs(harness, ("save_moments", {"moments": [odd]}), user_id="ada")
        (own,) = await outputs(harness, ("get_moments", {"query": "nul DROP \x00 & | ! :*"}), user_id="ada")
        (other,) = await outputs(harness, ("get_moments", {}), user_id="bob")
        return [saved, own, other]

    saved, own, other = play(scenario, ScriptedModel())

    assert saved["status"] == "success"
    assert own["results"][0]["summary"] == "nul \ufffd here: {{ $0.output.x }}"
    assert other["results"] == []


def test_search_ranks_passages_and_moments_together(play: Play) -> None:
    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness)
        knowledge = PostgresKnowledge(harness.database)
        pieces = [Piece("Boats", "A dinghy is a small boat."), Piece("Cars", "A car has four wheels.")]
        await knowledge.load("default", source="book.md", title="Book", digest="1", pieces=pieces)
        sailed = {"name": "Dinghy", "summary": "Sailed a dinghy, then another dinghy, in a dinghy race."}
        await outputs(harness, ("save_moments", {"moments": [sailed]}))
        return await outputs(
            harness,
            ("search", {"query": "dinghy"}),
            ("search", {"query": "dinghy", "limit": 1}),
            ("search", {"query": "dinghy", "sources": ["knowledge"]}),
            ("search", {"query": "zeppelin"}),
            ("knowledge_search", {"query": "dinghy"}),
        )

    both, best, passages, nothing, knowledge = play(scenario, ScriptedModel())

    assert [(hit["kind"], hit["title"]) for hit in both["results"]] == [
        ("moment", "Dinghy"),
        ("passage", "Book — Boats"),
    ]
    assert [hit["score"] for hit in both["results"]] == sorted((h["score"] for h in both["results"]), reverse=True)
    assert (best["count"], best["results"]) == (1, both["results"][:1])
    assert [hit["kind"] for hit in passages["results"]] == ["passage"]
    assert (nothing["count"], nothing["text"]) == (0, "Nothing was found for: zeppelin")
    assert knowledge["count"] == 1


def test_an_action_is_an_event_of_its_job_once(play: Play, read: Read) -> None:
    asked = {"type": "elicit", "payload": {"question": "Which format?", "options": ["A", "B"]}}
    noted = {"type": "observation"}

    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness)
        return await outputs(harness, ("action", asked), ("action", noted), ("action", noted))

    elicit, *observed = play(scenario, ScriptedModel())

    assert elicit == {
        "_action_event": True,
        "action_type": "elicit",
        "status": "success",
        "payload": {"question": "Which format?", "options": ["A", "B"]},
    }
    assert observed == [{"_action_event": True, "action_type": "observation", "status": "success"}] * 2
    events = read("SELECT data FROM events WHERE kind = 'action' ORDER BY sequence")
    assert [event["data"] for event in events] == [
        {"round": 0, "index": 0, **asked},
        {"round": 0, "index": 1, "type": "observation", "payload": None},
        {"round": 0, "index": 2, "type": "observation", "payload": None},
    ]


def test_an_attempt_that_is_over_tells_nothing(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> list[bool]:
        await furnish(harness)
        memory = PostgresMemory(harness.database)
        first = await begun(harness, ("action", {"type": "observation"}))
        told = [await memory.emit(context_of(first), "action", {"type": "a"}) for _ in range(2)]
        await harness.store.release(first)
        second = await claim_step(harness.store, first.ref)
        assert second is not None
        told.append(await memory.emit(context_of(first), "action", {"type": "late"}))
        told.append(await memory.emit(context_of(second), "action", {"type": "again"}))
        return told

    assert play(scenario, ScriptedModel()) == [True, True, False, True]
    assert [row["data"]["type"] for row in read("SELECT data FROM events WHERE kind = 'action'")] == ["a"]


def test_user_metadata_is_merged_and_bounded(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness)
        return await outputs(
            harness,
            ("update_user_metadata", {"metadata": {"a": {"b": 1, "c": 2}, "pets": ["Luna"]}}),
            ("update_user_metadata", {"metadata": {"a": {"b": None, "d": {"e": None, "f": 3}}, "pets": ["Rex"]}}),
            ("update_user_metadata", {"metadata": {}}),
            ("update_user_metadata", {"metadata": {"big": "x" * 40_000}}),
            user_id="ada",
        )

    *merged, last = play(scenario, ScriptedModel())

    assert merged[1]["metadata"] == {"a": {"c": 2, "d": {"f": 3}}, "pets": ["Rex"]}
    assert merged[2]["metadata"] == merged[1]["metadata"]
    assert (last["code"], "at most 32768 bytes" in last["message"]) == ("invalid_arguments", True)
    assert [(row["user_id"], row["data"]) for row in read("SELECT * FROM user_metadata")] == [
        ("ada", merged[1]["metadata"])
    ]


def test_changes_of_one_user_at_once_all_count(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        await furnish(harness)
        calls = [("update_user_metadata", {"metadata": {f"k{n}": n}}) for n in range(12)]
        await asyncio.gather(*(harness.submit(plan=plan(call), user_id="ada") for call in calls))
        await harness.drain()
        (last,) = await outputs(harness, ("update_user_metadata", {"metadata": {}}), user_id="ada")
        return last["metadata"]

    assert play(scenario, ScriptedModel()) == {f"k{n}": n for n in range(12)}


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("save_moments", {}, "found neither"),
    ("save_moments", {"moments": MOMENTS, "dream_moments": MOMENTS}, "found both"),
    ("save_moments", {"moments": [{"summary": "no name"}]}, "name"),
    ("save_moments", {"moments": [{"name": "a", "starts_at": "yesterday"}]}, "ISO 8601"),
    (
        "save_moments",
        {"moments": [{"name": "a", "starts_at": "2026-01-02", "ends_at": "2026-01-01"}]},
        "after its start",
    ),
    ("save_moments", {"moments": [{"name": "a", "x": "y" * 40_000}]}, "at most 32768 bytes"),
    ("get_moments", {"since": "soon"}, "ISO 8601"),
    ("action", {"type": "a", "payload": {"x": "y" * 20_000}}, "at most 16384 bytes"),
    ("action", {"type": ""}, "type"),
    ("search", {"query": "a", "sources": ["web"]}, "sources"),
]


def test_bad_arguments_are_told(play: Play) -> None:
    async def scenario(harness: Harness) -> list[str]:
        await furnish(harness)
        told = []
        for name, arguments, _ in BAD:
            job, steps = await harness.run(plan=plan((name, arguments)))
            told.append(steps[0]["error"]["message"] if steps else str(job["plan_errors"]))
        return told

    for (name, _, expected), message in zip(BAD, play(scenario, ScriptedModel()), strict=True):
        assert expected in message, name


def test_without_a_search_service_the_error_says_what_to_set(play: Play) -> None:
    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness)
        return await outputs(harness, ("web_search", {"query": "boats"}))

    (error,) = play(scenario, ScriptedModel())
    assert (error["code"], error["details"]) == ("tool_error", {"cause": "misconfigured"})
    assert "PLANQ_WEB_SEARCH" in error["message"]


def test_the_skill_of_an_agent_follows_into_its_artifacts(play: Play, read: Read) -> None:
    """Its first one, unless the output or the tool names another; a job without an agent has none."""
    report = {"title": "T", "sections": [{"heading": "H", "content": "x"}]}

    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness)
        agents, skills = DocumentStore(harness.database, "agent"), DocumentStore(harness.database, "skill")
        for name in ("writing", "reading"):
            await skills.put("default", name, f"how {name} goes")
        await agents.put("default", "author", '{"name": "author"}', skills=["writing", "reading"])
        pinned = {"agent": "author", "agent_version": 1, "skill_versions": [1, 1]}
        calls = [("write_report", report), ("write_report", {**report, "skill_id": "own"})]
        return [*await outputs(harness, *calls, **pinned), *await outputs(harness, calls[0])]

    of_agent, named, plain = play(scenario, ScriptedModel())

    assert of_agent["_metadata"]["skill_id"] == "writing"
    assert "skill_id" not in plain["_metadata"]
    stored = {row["id"]: row["skill_id"] for row in read("SELECT id, skill_id FROM artifacts")}
    assert [stored[output["artifact_id"]] for output in (of_agent, named, plain)] == ["writing", "own", None]
