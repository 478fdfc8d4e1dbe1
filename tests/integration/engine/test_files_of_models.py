"""Files that models make, from the provider's wire to the artifacts of a job, stored once whatever is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import psycopg
import pytest

from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.errors import DatabaseUnavailable
from planq.shared.subjects.payloads.store import PayloadStore
from planq.worker.engine.persist import persist
from planq.worker.models.files import FileStore
from planq.worker.models.gateway import ModelGateway
from planq.worker.tools.builtin.pure import calculate
from tests.integration.engine.test_lost_ends import allowed, refused
from tests.integration.llm.calls import settings_for
from tests.integration.llm.dialects import GOOGLE, OPENAI_RESPONSES, Dialect
from tests.integration.llm.turns import calling, reasoning
from tests.integration.llm.wire import Reply, WireServer, wire_server
from tests.support.harness import Harness, make_tool
from tests.support.pictures import PNG, base64_of, png

PAINTER = replace(GOOGLE, model="google:gemini-2.5-flash-image")
DIALECTS = [one for dialect in (PAINTER, OPENAI_RESPONSES) for one in (dialect, dialect.whole)]
every_maker = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
MAX_BYTES = 1_000


@pytest.fixture
def server() -> Iterator[WireServer]:
    with wire_server() as running:
        yield running


def with_file(dialect: Dialect, reply: dict[str, Any], data: bytes = PNG) -> dict[str, Any]:
    """Return a reply in which the model has made a picture, too."""
    if dialect.provider is GOOGLE.provider:
        made = {"inlineData": {"mimeType": "image/png", "data": base64_of(data)}}
        reply["candidates"][0]["content"]["parts"].append(made)
    else:
        made = {"type": "image_generation_call", "id": "ig1", "status": "completed", "result": base64_of(data)}
        reply["output"].append(made)
    return reply


@dataclass
class Made:
    """A job, its artifacts, and the payload that each one has."""

    job: Any
    artifacts: list[dict[str, Any]]
    bodies: list[bytes]


Played = Callable[..., Made]


@pytest.fixture
def made(play: Callable[..., Any], server: WireServer) -> Played:
    """`made(dialect, replies…)`: run a job with a model that says these; `amid` comes between its wake-ups."""

    def run(dialect: Dialect, *replies: Any, amid: Any = None, tools: Any = (), **fields: Any) -> Made:
        server.script(*map(Reply, replies))
        settings = settings_for(dialect, server, max_attempts=1)
        gateway = ModelGateway(settings)

        async def scenario(harness: Harness) -> Made:
            payloads = PayloadStore(harness.database)
            gateway._files = FileStore(lambda *put: persist(payloads.put, *put), MAX_BYTES)
            job_id = await harness.submit("Draw a square.", model=dialect.model, **fields)
            if amid is not None:
                await amid(harness, job_id)
            await harness.drain()
            await gateway.aclose()
            job, _ = await harness.requests.job("default", job_id)
            found = await harness.requests.artifacts("default", job_id)
            rows = [await harness.requests.artifact("default", one["id"]) for one in found]
            return Made(job, found, [await payloads.get("default", row["payload_hash"]) for row in rows])

        result: Made = play(scenario, gateway, tools, model_retry_seconds=60.0)
        return result

    return run


def name_of(job: Any, data: bytes = PNG) -> str:
    return f"{job['id']}/files/{sha256(data).hexdigest()[:32]}"


@every_maker
def test_a_picture_beside_a_text_is_an_artifact(made: Played, dialect: Dialect) -> None:
    found = made(dialect, with_file(dialect, dialect.reply("Here it is.", None)))

    assert (found.job["status"], found.job["answer"]) == ("completed", "Here it is.")
    (artifact,) = found.artifacts
    assert (artifact["id"], artifact["media_type"], artifact["bytes"]) == (name_of(found.job), "image/png", len(PNG))
    assert (artifact["step_index"], artifact["tool_name"], artifact["metadata"]) == (
        None,
        None,
        {"model": dialect.model},
    )
    assert found.bodies == [PNG]


def test_a_model_that_makes_images_is_asked_for_them(made: Played, server: WireServer) -> None:
    made(PAINTER, with_file(PAINTER, PAINTER.reply("", None)))

    assert server.requests[0].body["generationConfig"]["responseModalities"] == ["TEXT", "IMAGE"]


@every_maker
def test_an_answer_that_is_only_a_picture_names_it(made: Played, dialect: Dialect) -> None:
    found = made(dialect, with_file(dialect, dialect.reply("", None)))

    assert found.job["status"] == "completed"
    assert found.job["answer"] == f"The answer is a file of the type image/png: artifact {name_of(found.job)}", (
        found.job["error"]
    )
    assert found.bodies == [PNG]


@every_maker
def test_a_picture_that_is_too_large_is_noted_and_the_answer_stays(made: Played, dialect: Dialect) -> None:
    found = made(dialect, with_file(dialect, dialect.reply("Here it is.", None), PNG.ljust(MAX_BYTES + 1)))

    assert found.job["status"] == "completed"
    assert found.job["answer"] == (
        "Here it is.\n\nA file (image/png, 1001 bytes) was not stored: it may have at most 1000 bytes."
    )
    assert found.artifacts == []


@every_maker
def test_pictures_of_several_rounds_are_artifacts_each_once(made: Played, dialect: Dialect) -> None:
    dialect = reasoning(dialect)
    call = calling(dialect, "Let me see.", ("calculate", {"expression": "2+2"}))
    again = with_file(dialect, dialect.reply("It is 4.", None))
    found = made(
        dialect,
        with_file(dialect, call),
        with_file(dialect, again, png(7)),
        tools=[make_tool(calculate)],
        strategy=Strategy.REACT,
    )

    assert (found.job["status"], found.job["answer"]) == ("completed", "It is 4.")
    assert {one["id"] for one in found.artifacts} == {name_of(found.job), name_of(found.job, png(7))}
    assert sorted(found.bodies) == sorted([PNG, png(7)])


def test_a_commit_whose_answer_was_lost_stores_the_picture_once(made: Played) -> None:
    async def amid(harness: Harness, job_id: Any) -> None:
        end_job, ends = harness.store.end_job, 0

        async def lost(*args: Any, **more: Any) -> bool:
            nonlocal ends
            ends += 1
            applied = await end_job(*args, **more)
            if ends == 1:
                raise DatabaseUnavailable("the answer of the commit was lost")
            return applied

        harness.store.end_job = lost  # type: ignore[method-assign]

    found = made(PAINTER, with_file(PAINTER, PAINTER.reply("", None)), amid=amid)

    assert (found.job["status"], found.bodies) == ("completed", [PNG])


def test_a_worker_that_lost_its_stage_stores_no_picture(made: Played) -> None:
    async def amid(harness: Harness, job_id: Any) -> None:
        end_job = harness.store.end_job

        async def late(claim: StageClaim, *args: Any, **more: Any) -> bool:
            harness.store.end_job = end_job  # type: ignore[method-assign]
            assert await harness.database.call("planq_release_stage", job_id, claim.attempt, True, None)
            harness.published.append(Wake.plan(job_id, tenant="default"))
            return await end_job(claim, *args, **more)

        harness.store.end_job = late  # type: ignore[method-assign, assignment]

    first, second = (with_file(PAINTER, PAINTER.reply("", None), png(red)) for red in (1, 2))
    found = made(PAINTER, first, second, amid=amid)

    assert (found.job["status"], found.bodies, found.job["model_calls"]) == ("completed", [png(2)], 2)


def test_an_end_that_the_database_refuses_keeps_the_picture(made: Played, database_url: str) -> None:
    async def amid(harness: Harness, job_id: Any) -> None:
        with psycopg.connect(database_url, autocommit=True) as connection:
            refused(connection, "artifacts")
            await harness.drain()
            assert await harness.requests.artifacts("default", job_id) == []
            allowed(connection, "artifacts")
            connection.execute("UPDATE jobs SET run_at = now(), wake_at = now()")
        harness.published = [Wake.plan(job_id, tenant="default")]

    found = made(PAINTER, with_file(PAINTER, PAINTER.reply("", None)), amid=amid)

    assert (found.job["status"], found.bodies, found.job["model_calls"]) == ("completed", [PNG], 1)


def test_without_storage_an_answer_says_so(play: Callable[..., Any], server: WireServer) -> None:
    server.script(Reply(with_file(PAINTER, PAINTER.reply("", None))))

    async def scenario(harness: Harness) -> Any:
        return await harness.run(model=PAINTER.model)

    job, _ = play(scenario, ModelGateway(settings_for(PAINTER, server)))

    assert (job["status"], job["answer"]) == (
        "completed",
        "1 files were not stored: this process has no storage for files.",
    )
