"""How much of a fan-out stays where it became ready, and in which messages the rest goes."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import Pool
from planq.shared.kernel.wakes import Wake
from planq.worker.engine.chain import LOCAL_FAN_OUT, in_messages, own_share

JOB, OTHER = UUID(int=1), UUID(int=2)


def steps(count: int, pool: Pool = Pool.IO, job: UUID = JOB) -> list[Wake]:
    return [Wake(StepRef(job, 0, index), pool, f"tool_{index}") for index in range(count)]


def spread(messages: list[Wake]) -> list[Wake]:
    return [wake for message in messages for wake in message.each]


@pytest.mark.parametrize(
    ("ready", "free", "workers", "share"),
    [
        (3, 300, 2, 3),
        (LOCAL_FAN_OUT, 300, 4, LOCAL_FAN_OUT),
        (100, 300, 2, 50),
        (100, 300, 1, 100),
        (100, 20, 1, 20),
        (1000, 300, 3, 300),
        (9, 300, 2, 8),
        (5, 0, 1, 0),
        (0, 300, 0, 0),
    ],
)
def test_a_process_takes_its_part_and_never_more_than_it_has_slots_for(
    ready: int, free: int, workers: int, share: int
) -> None:
    assert own_share(ready, free, workers) == share


@given(st.integers(0, 2000), st.integers(0, 500), st.integers(0, 20))
def test_a_share_is_within_what_is_ready_and_what_is_free(ready: int, free: int, workers: int) -> None:
    share = own_share(ready, free, workers)
    assert 0 <= share <= min(ready, free)
    assert share == min(ready, free) or share * max(workers, 1) >= ready, "the others' parts are no larger"


@given(st.integers(0, 700), st.integers(0, 20))
def test_every_step_is_published_once_in_few_even_messages(count: int, workers: int) -> None:
    messages = in_messages(steps(count), workers)
    assert spread(messages) == steps(count)
    sizes = [1 + len(message.more) for message in messages]
    assert max(sizes, default=0) <= 100
    assert len(messages) <= max(workers - 1, 1, -(-count // 100))


def test_a_step_and_a_stage_share_no_message() -> None:
    wakes = [*steps(1), Wake.respond(JOB)]
    assert sorted(in_messages(wakes, 2), key=lambda wake: wake.ref.index) == wakes[::-1]


def test_every_cpu_step_has_a_message_of_its_own() -> None:
    wakes = steps(40, Pool.CPU)
    assert in_messages(wakes, 2) == wakes


def test_steps_of_different_jobs_share_no_message() -> None:
    messages = in_messages([*steps(5), *steps(5, job=OTHER)], 2)
    assert [(m.job_id, 1 + len(m.more)) for m in messages] == [(JOB, 5), (OTHER, 5)]
