"""`planq.Client` and `planq.AsyncClient` against a whole planq, also while its API restarts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import planq
from planq.shared.platform.errors import Conflict, NotFound
from tests.support.stack import Stack


async def call(method: Any, *arguments: Any, **named: Any) -> Any:
    """Call a method of either client: what blocks runs in a thread, and what yields is read to its end."""
    if inspect.iscoroutinefunction(method):
        return await method(*arguments, **named)
    found = await asyncio.to_thread(method, *arguments, **named)
    if hasattr(found, "__aiter__"):
        return [one async for one in found]
    return await asyncio.to_thread(list, found) if inspect.isgenerator(found) else found


Play = Callable[[Any], Awaitable[None]]


@pytest.fixture(params=["blocking", "awaiting"])
def carry_out(request: pytest.FixtureRequest, stack: Stack) -> Callable[[Play], None]:
    """`carry_out(play)`: run a play with one of the clients."""

    async def run(play: Play) -> None:
        if request.param == "blocking":
            with planq.Client(stack.url) as client:
                await play(client)
        else:
            async with planq.AsyncClient(stack.url) as beside:
                await play(beside)

    return lambda play: asyncio.run(run(play))


@pytest.fixture
def stack(make_stack: Callable[..., Stack], database_url: str, valkey_url: str) -> Stack:
    stack = make_stack(database_url, valkey_url, env={"PLANQ_TOOLS": "tests.support.client_tools"})
    stack.start()
    return stack


BOOKING = {"calls": [{"tool_name": "book_room", "arguments": {}}]}


def test_a_job_from_its_submission_to_its_end(carry_out: Callable[[Play], None]) -> None:
    async def play(client: Any) -> None:
        job = await call(client.submit, "calculate 6*7", metadata={"order": 7})
        assert "6*7 = 42" in await call(job.result, 60)
        assert (job.outcome, job.document["metadata"]) == ("succeeded", {"order": 7})
        assert (await call(job.output, 0))["result"] == 42
        assert (await call(client.jobs, 1))[0]["id"] == job.id

        again = await call(client.job, job.id)
        told = await call(again.stream)
        assert [told[0].kind, told[-1].kind, told[-1].data["id"]] == ["job_submitted", "job", job.id]
        with pytest.raises(Conflict):
            await call(job.cancel)
        with pytest.raises(NotFound):
            await call(client.job, "00000000-0000-7000-8000-000000000000")

        aborted = await call(client.submit, plan={"steps": [{"type": "abort", "reason": "no luck"}]})
        with pytest.raises(planq.JobFailed, match="no luck"):
            await call(aborted.result, 60)
        sums = [{"tool_name": "calculate", "arguments": {"expression": one}} for one in ("1/0", "6*7")]
        failing = await call(client.submit, plan={"calls": sums})
        with pytest.raises(planq.JobFailed) as failed:
            await call(failing.result, 60)
        assert (failing.outcome, failed.value.steps[0]["status"]) == ("failed", "failed")
        some = await call(client.submit, plan={"calls": sums, "on_failure": "continue"}, respond="output")
        with pytest.raises(planq.JobPartial) as partial:
            await call(some.result, 60)
        assert (some.outcome, partial.value.result) == ("partial", {"result": 42})

    carry_out(play)


def test_a_question_is_waited_for_and_answered(carry_out: Callable[[Play], None]) -> None:
    async def play(client: Any) -> None:
        job = await call(client.submit, plan=BOOKING)
        await call(job.wait, 60)
        assert job.status == "input_required"
        with pytest.raises(TimeoutError):
            await call(job.result, 0.1)
        (question,) = await call(job.questions)
        await call(client.answer, question["id"], {"city": "Pisa"}, by="ann")
        with pytest.raises(Conflict):
            await call(client.answer, question["id"], action="decline")
        await call(job.result, 60)
        assert job.steps[0]["output"] == {"booked": "Pisa"}

        other = await call(client.submit, plan=BOOKING)
        await call(other.cancel)
        with pytest.raises(planq.JobCancelled):
            await call(other.result, 60)

    carry_out(play)


def test_messages_and_batches(carry_out: Callable[[Play], None]) -> None:
    async def play(client: Any) -> None:
        reply = await call(client.send_message, "calculate 2+3", thread="sums", sender="ann", timeout=60)
        assert "2+3 = 5" in reply["message"]["content"]["text"]

        lines = [{"custom_id": f"n{number}", "body": {"input": f"calculate {number}+1"}} for number in range(3)]
        batch = await call(client.submit_batch, [*lines, {"custom_id": "odd", "body": {}}], name="sums")
        await call(batch.wait, 60)
        assert (batch.status, batch.counts["completed"], batch.counts["invalid"]) == ("completed", 3, 1)
        results = await call(batch.results, order="input")
        assert [line["custom_id"] for line in results] == ["n0", "n1", "n2"]
        assert [line["custom_id"] for line in await call(batch.errors)] == ["odd"]

    carry_out(play)


@pytest.mark.whole
def test_all_goes_on_over_a_restart_of_the_api(carry_out: Callable[[Play], None], stack: Stack) -> None:
    async def play(client: Any) -> None:
        job = await call(client.submit, plan=BOOKING)
        await call(job.wait, 60)
        (question,) = await call(job.questions)
        followed = await call(client.job, job.id)
        reading = asyncio.create_task(call(followed.stream))
        waiting = asyncio.create_task(call(job.result, 120))

        for end in (stack.kill, stack.terminate):
            stopped = stack.processes["api"]
            end("api")
            await asyncio.to_thread(stopped.wait, 60)
            submitting = asyncio.create_task(call(client.submit, "calculate 1+1"))  # while nothing answers
            await asyncio.to_thread(stack.run, "api", "-m", "planq.api")
            assert "1+1 = 2" in await call((await submitting).result, 60)

        await call(client.answer, question["id"], {"city": "Pisa"})
        await asyncio.wait_for(waiting, 60)
        told = await asyncio.wait_for(reading, 60)
        seen = [event.id for event in told if event.id]
        assert len(seen) == len(set(seen))
        assert [event.kind for event in told if event.kind in ("step_started", "job")].count("job") == 1
        assert len(await call(client.jobs)) == 3, "each submission made one job"

    carry_out(play)
