"""A tool's call under its timeout: who begins when, and what becomes of a call that does not end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.tools.definition import LATENCIES_SECONDS
from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.retry import Phase, RetryTerms
from planq.shared.kernel.states import Effect, Pool
from planq.shared.platform.errors import InternalFault, InvalidArguments, TimedOut
from planq.worker.engine.lease import Owner, Writes
from planq.worker.engine.running import AttemptState, RunningAttempt, attempt_of
from planq.worker.handlers.tool_call import Calling, CallSecrets, no_secrets


def claim(timeout_seconds: float = 30.0) -> StepClaim:
    return StepClaim(
        ref=StepRef(UUID(int=1), 0, 0),
        tenant_id="default",
        tool_name="probe",
        effect=Effect.PURE,
        pool=Pool.IO,
        arguments={},
        outputs={},
        attempt=1,
        tries=1,
        retry=RetryTerms(),
        worker_losses=0,
        timeout_seconds=timeout_seconds,
        user_id="",
        trace_id="",
        context_id="",
    )


async def held() -> bool:
    return True


def called(step: StepClaim) -> Calling:
    return Calling(step, Owner(step, None, Writes(), held), CallSecrets("default", no_secrets))


async def asked(calling: Calling, tool: Callable[[], Awaitable[Any]]) -> Any:
    with calling:
        return await tool()


@pytest.mark.parametrize(("outcome", "fails"), [("succeeded", False), ("invalid_arguments", True)])
def test_calls_of_tools_are_counted_with_their_latency(outcome: str, fails: bool) -> None:
    counts = Counter[tuple[str, ...]]()

    async def tool() -> int:
        if fails:
            raise InvalidArguments("no")
        return 1

    async def attempt(calling: Calling) -> Any:
        calling.count(counts, "before")
        calling.phase = Phase.CALLING
        return await asked(calling, tool)

    async def scenario() -> None:
        calling = called(claim())
        with contextlib.suppress(InvalidArguments):
            await calling.answer(attempt(calling))
        calling.count(counts, outcome)

    asyncio.run(scenario())

    assert counts.pop(("tool_ms", "probe")) >= 0
    assert counts.pop(("tool_call", "probe", outcome)) == 1
    ((name, told, bucket),) = counts
    assert (name, told, counts[name, told, bucket]) == ("tool_seconds", "probe", 1)
    assert bucket == "+Inf" or float(bucket) in LATENCIES_SECONDS


def test_the_first_of_many_calls_its_tool_before_the_last_is_prepared() -> None:
    told: list[str] = []

    async def attempt(number: int, calling: Calling) -> int:
        async def tool() -> int:
            told.append(f"call {number}")
            await asyncio.sleep(0)
            return number

        told.append(f"prepare {number}")
        return int(await asked(calling, tool))

    async def one(number: int) -> Any:
        calling = called(claim())
        return await calling.answer(attempt(number, calling))

    async def all_at_once() -> list[Any]:
        return list(await asyncio.gather(*(one(number) for number in range(3))))

    assert asyncio.run(all_at_once()) == [0, 1, 2]
    assert told == ["prepare 0", "call 0", "prepare 1", "call 1", "prepare 2", "call 2"]


def test_the_time_of_a_tool_does_not_run_while_its_call_is_prepared() -> None:
    async def slowly() -> Any:
        calling = called(claim(timeout_seconds=0.05))

        async def tool() -> str:
            return "in time"

        async def attempt() -> Any:
            loop = asyncio.get_running_loop()
            until = loop.create_future()
            loop.call_later(0.15, until.set_result, None)
            await until
            return await asked(calling, tool)

        return await calling.answer(attempt()), calling.is_abandoned

    assert asyncio.run(slowly()) == ("in time", False)


def test_a_tool_that_does_not_answer_is_cancelled() -> None:
    async def hanging() -> tuple[bool, bool]:
        calling, ended = called(claim(timeout_seconds=0.02)), asyncio.Event()

        async def tool() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        with pytest.raises(TimedOut, match="did not answer within"):
            await calling.answer(asked(calling, tool))
        return calling.is_abandoned, ended.is_set()

    assert asyncio.run(hanging()) == (True, True)


def test_whoever_waits_for_the_answer_takes_the_call_along_when_it_is_cancelled() -> None:
    async def cut_off() -> bool:
        calling, begun, ended = called(claim()), asyncio.Event(), asyncio.Event()

        async def tool() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        waiting = asyncio.create_task(calling.answer(asked(calling, tool)))
        await begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return ended.is_set()

    assert asyncio.run(cut_off())


def test_a_tool_that_cancels_itself_fails_as_a_defect() -> None:
    async def itself() -> None:
        calling = called(claim())

        async def tool() -> None:
            raise asyncio.CancelledError

        with pytest.raises(InternalFault, match="cancelled itself"):
            await calling.answer(asked(calling, tool))

    asyncio.run(itself())


def test_what_fails_before_the_call_says_so_by_its_phase() -> None:
    async def refused() -> Phase:
        calling = called(claim())

        async def attempt() -> None:
            raise InvalidArguments("no")

        with pytest.raises(InvalidArguments):
            await calling.answer(attempt())
        return calling.phase

    assert asyncio.run(refused()) is Phase.PREPARING


S = AttemptState


@pytest.mark.parametrize(
    ("before", "may_follow"),
    [
        (S.HELD, {S.RUNNING, S.CONCLUDING, S.CUT_OFF}),
        (S.RUNNING, {S.FENCED, S.CONCLUDING, S.CUT_OFF}),
        (S.FENCED, {S.HELD, S.CUT_OFF}),  # its cancellation is under way: what concludes would take it for another
        (S.CONCLUDING, {S.CANCELLED}),
        (S.CANCELLED, set()),
        (S.CUT_OFF, set()),
    ],
)
def test_an_attempt_goes_to_no_state_but_those_that_may_follow(
    before: AttemptState, may_follow: set[AttemptState]
) -> None:
    """Its cancellation came when it was said to conclude: it went up to the dispatcher as that of the process."""
    followed = set[AttemptState]()
    for state in AttemptState:
        running = RunningAttempt(attempt_of(claim()), claim(), before)
        if running.move(state):
            followed.add(state)
        assert running.state is (state if state in followed else before)
    assert followed == may_follow
