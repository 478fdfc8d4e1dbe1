"""Whoever the end of a job concerns is served with it once, also where who ended the job died before doing so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.kernel.children import ChildRequest, Delegated
from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.job_store import ClaimRequest
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus, Pool, Respond, Strategy
from planq.shared.kernel.submission import Submission
from planq.shared.platform.errors import ErrorRecord
from planq.worker.engine import Sweeper
from planq.worker.tools.declare import tool
from tests.support.batches import admitted, item, stored_batch
from tests.support.children import children_of
from tests.support.claiming import claim_stage
from tests.support.conversations import Thread
from tests.support.harness import SWEEP, Harness, ScriptedModel, make_tool
from tests.support.plans import compiled

Connection = psycopg.Connection[Any]


@tool(name="note", effect="read")
async def note(text: str) -> dict[str, str]:
    """Note a text."""
    return {"text": f"<{text}>"}


CALL = {"calls": [{"tool_name": "sim_read", "arguments": {}}]}
BOOM = ErrorRecord("internal", "boom")


async def child(harness: Harness, connection: Connection) -> UUID:
    """A job whose parent waits for it."""
    parent = new_id()
    await harness.requests.submit(Submission(parent, "default", "x", Strategy.PLAN, "offline", Limits()))
    stage = await claim_stage(harness.store, parent, [JobStatus.QUEUED])
    assert stage is not None
    plan = compiled(Plan.model_validate(CALL))
    (claim,) = (await harness.store.accept_plan(stage, "model", {}, plan, [], take=ClaimRequest(Pool.IO))).taken
    assert isinstance(claim, StepClaim)
    assert (await harness.store.delegate_step(claim, Delegated([ChildRequest(None, "", 60.0, plan=CALL)]))).applied
    (made,) = await children_of(harness.database, parent)
    return UUID(str(made["id"]))


async def turn(harness: Harness, connection: Connection) -> UUID:
    """A turn of a conversation."""
    received = await Thread(harness.database).says("x")
    assert received.job_id is not None
    return received.job_id


async def line(harness: Harness, connection: Connection) -> UUID:
    """The job of the line of a batch."""
    stored_batch(connection, [item("x")])
    (job_id,) = admitted(connection)
    return job_id


async def heard(harness: Harness, connection: Connection) -> UUID:
    """A job whose end its caller wants to hear of, at a moment at which no delivery can be written."""
    job_id = new_id()
    given = Submission(job_id, "default", "x", Strategy.PLAN, "offline", Limits(), callback_url="https://a.test/")
    await harness.requests.submit(given)
    refused(connection, "deliveries")
    return job_id


@dataclass(frozen=True)
class Consumer:
    """Somebody whom ends concern: `make` makes a job whose end does, `served` counts the ends served."""

    make: Callable[[Harness, Connection], Awaitable[UUID]]
    served: str
    table: str


CONSUMERS = {
    "parent": Consumer(child, "SELECT count(*) FROM steps WHERE joined AND open_children = 0", "steps"),
    "turn": Consumer(
        turn, "SELECT count(*) FROM conversation_messages WHERE direction = 'outbound'", "conversation_messages"
    ),
    "line": Consumer(line, "SELECT coalesce(sum(completed + failed), 0) FROM batches", "batch_lines"),
    "delivery": Consumer(heard, "SELECT count(*) FROM deliveries WHERE event LIKE 'job.%'", "deliveries"),
}


def refused(connection: Connection, table: str) -> None:
    """Let every write to a table fail."""
    connection.execute(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'not today' USING ERRCODE = 'undefined_function'; END $$"
    )
    connection.execute(
        f"CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()".encode()
    )


def allowed(connection: Connection, table: str) -> None:
    """Let what was refused come to pass again."""
    connection.execute(f"DROP TRIGGER IF EXISTS refuse ON {table}".encode())


async def end(harness: Harness, job_id: UUID, status: JobStatus = JobStatus.COMPLETED) -> None:
    """End a job, as a worker does that dies with that commit."""
    claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED, JobStatus.RESPONDING])
    assert claim is not None
    error = BOOM if status is JobStatus.FAILED else None
    assert await harness.store.end_job(claim, status, None if error else "done", error, [])


def aged(connection: Connection) -> None:
    """Let what has ended have done so a while ago."""
    connection.execute("UPDATE jobs SET finished_at = finished_at - interval '1 h' WHERE finished_at IS NOT NULL")


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_lost_end_is_served_once(play: Any, database_url: str, name: str) -> None:
    """Behind a transaction elsewhere that is held open, and again after the job was resumed."""
    consumer = CONSUMERS[name]

    async def scenario(harness: Harness) -> None:
        def count() -> int:
            ((number,),) = connection.execute(consumer.served.encode()).fetchall()
            return int(number)

        async def broken() -> list[Any]:
            rows = await harness.worker_registry.broken_invariants()
            return [(row["invariant"], row["job_id"]) for row in rows if "lease" not in row["invariant"]]

        job_id = await consumer.make(harness, connection)
        await end(harness, job_id, JobStatus.COMPLETED if name == "parent" else JobStatus.FAILED)
        allowed(connection, consumer.table)
        aged(connection)
        assert (count(), await broken()) == (0, [("end_not_served", job_id)])

        held.execute("SELECT pg_current_xact_id()")
        for _ in range(2):
            await harness.sweeper.sweep()
            assert (count(), await broken()) == (1, [])
        assert not (await harness.store.serve_end(job_id)).applied
        assert count() == 1
        if name == "parent":
            return  # a child that has ended is never resumed

        assert (await harness.requests.resume("default", job_id, after=0)).applied
        await harness.sweeper.sweep()
        assert count() == 1, "it has not ended again"
        await end(harness, job_id)
        aged(connection)
        await harness.sweeper.sweep()
        assert (count(), await broken()) == (1 if name == "line" else 2, []), "a line ends anew, and counts once"

    with psycopg.connect(database_url, autocommit=True) as connection, psycopg.connect(database_url) as held:
        play(scenario, ScriptedModel())


def test_the_turn_after_one_that_ends_with_its_last_step_waits_for_no_sweep(play: Any) -> None:
    """Its conversation was not told, as no stage had ended the job."""

    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)
        plan = {"calls": [{"tool_name": "note", "arguments": {"text": "a"}}]}
        first = await thread.says("x", submission={"plan": plan, "respond": Respond.OUTPUT})
        await thread.says("y")
        await harness.publish(first.wakes)
        await harness.drain()
        rows = await thread.rows(first.conversation_id)
        assert [text for direction, text in rows if direction == "outbound"] == ["<a>", "hello"]

    play(scenario, ScriptedModel(planned="hello"), [make_tool(note)])


@pytest.mark.parametrize("name", CONSUMERS)
def test_an_end_that_cannot_be_served_keeps_no_other_waiting(play: Any, database_url: str, name: str) -> None:
    """Nor does it come undone; it is served once it can be."""
    faulty = CONSUMERS[name]

    async def scenario(harness: Harness) -> None:
        def counts() -> dict[str, int]:
            return {
                each: int(connection.execute(one.served.encode()).fetchall()[0][0]) for each, one in CONSUMERS.items()
            }

        for each in CONSUMERS.values():
            await end(harness, await each.make(harness, connection))
        allowed(connection, "deliveries")
        aged(connection)
        refused(connection, faulty.table)
        for _ in range(2):
            await harness.sweeper.sweep()
            assert counts() == {each: int(each != name) for each in CONSUMERS}
        allowed(connection, faulty.table)
        await harness.sweeper.sweep()
        assert counts() == dict.fromkeys(CONSUMERS, 1)

    with psycopg.connect(database_url, autocommit=True) as connection:
        play(scenario, ScriptedModel())


def test_more_ends_that_can_never_be_served_than_a_sweep_takes_hide_no_other(play: Any, database_url: str) -> None:
    async def scenario(harness: Harness) -> None:
        given = harness.worker_registry, harness, harness, harness.silent.job_ended, lambda: 0.0
        sweeper = Sweeper(replace(SWEEP, batch=1), *given, interrupt=harness.interrupted.append)
        for _ in range(3):
            await end(harness, await turn(harness, connection))
        aged(connection)
        refused(connection, "conversation_messages")
        job_id = await child(harness, connection)
        await end(harness, job_id)
        connection.execute("UPDATE jobs SET finished_at = finished_at - interval '1 min' WHERE id = %s", (job_id,))
        sweeps = 0
        while connection.execute(CONSUMERS["parent"].served.encode()).fetchall() == [(0,)]:
            await sweeper.sweep()
            sweeps += 1
            assert sweeps < 50, "the first one, tried again and again, is all that a sweep sees"

    with psycopg.connect(database_url, autocommit=True) as connection:
        play(scenario, ScriptedModel())


def test_a_line_that_cannot_be_settled_keeps_no_other_line_waiting(play: Any, database_url: str) -> None:
    async def scenario(harness: Harness) -> None:
        stored_batch(connection, [item("x"), item("y"), item("z")])
        for job_id in admitted(connection):
            await end(harness, job_id)
        connection.execute("ALTER TABLE batch_lines ADD CHECK (line <> 2 OR status = 'admitted') NOT VALID")
        await harness.sweeper.sweep()
        settled = connection.execute("SELECT line FROM batch_lines WHERE status = 'completed' ORDER BY line")
        assert settled.fetchall() == [(1,), (3,)]

    with psycopg.connect(database_url, autocommit=True) as connection:
        play(scenario, ScriptedModel())
