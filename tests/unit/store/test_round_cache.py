"""Rounds that a worker has read: what its next claims add to them, and how many a process keeps."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.store.codec import NO_ROUNDS, CachedRounds
from planq.shared.kernel.store.transitions import RoundCache

JOBS = [UUID(int=number) for number in range(3)]


def step(index: int, **fields: Any) -> dict[str, Any]:
    """A succeeded step as `planq_results` returns it."""
    empty = dict.fromkeys(("payload_hash", "output_bytes", "excerpts", "preview", "content", "error", "seconds"))
    own = {"index": index, "tool_name": "note", "status": "succeeded", "attempt": 1}
    return {**empty, **own, "arguments": {}, "inputs": [], "output": {"n": index}, **fields}


def rounds(*numbers: int, **fields: Any) -> list[dict[str, Any]]:
    """Rounds of two steps each as `planq_rounds` returns them; `fields` are of each second step."""
    plan = {"source": "model", "body": {}, "reply": None, "errors": None, "artifacts": None}
    return [{**plan, "round": n, "results": [step(2 * n), step(2 * n + 1, **fields)]} for n in numbers]


def claim(values: Any, *, ended: str = "t", merged: Any = None) -> dict[str, Any]:
    """The fields of a claim that say which rounds are over."""
    return {"rounds": values, "rounds_ended": ended, "merged": merged}


def test_rounds_that_come_one_by_one_are_those_that_come_together() -> None:
    refers = {"arguments": {"n": "$0.output.n"}, "inputs": [0]}
    one_by_one = NO_ROUNDS
    for number in range(3):
        one_by_one = one_by_one.after(claim(rounds(number, **refers)), as_called)

    together = NO_ROUNDS.after(claim(rounds(0, 1, 2, **refers)), as_called)

    assert one_by_one.records == together.records
    assert [record.first_index for record in together.records] == [0, 2, 4]
    assert [record.results[1].arguments for record in together.records] == [{"n": 0}] * 3
    assert one_by_one.left == together.left


def test_rounds_are_named_by_their_number_and_the_end_of_the_last_one() -> None:
    cached = NO_ROUNDS.after(claim(rounds(0, 1), ended="later"), as_called)

    assert NO_ROUNDS.mark is None
    assert cached.mark == {"rounds": 2, "index": 2, "ended": "later"}


def test_a_claim_without_new_rounds_leaves_what_is_cached() -> None:
    cached = NO_ROUNDS.after(claim(rounds(0, 1)), as_called)

    again = cached.after(claim(None), as_called)

    assert again == cached
    assert [new is old for new, old in zip(again.records, cached.records, strict=True)] == [True, True]


def test_a_claim_that_returns_all_rounds_replaces_what_is_cached() -> None:
    cached = NO_ROUNDS.after(claim(rounds(0, 1, output={"n": "lost"})), as_called)

    anew = cached.after(claim(rounds(0)), as_called)

    assert anew == NO_ROUNDS.after(claim(rounds(0)), as_called)


def test_messages_belong_to_the_round_in_which_they_came() -> None:
    cached = NO_ROUNDS.after(claim(rounds(0, 1)), as_called)
    said = [{"round": 1, "text": "a"}, {"round": 1, "text": "b"}, {"round": 2, "text": "c"}]

    merged = cached.after(claim(rounds(2), merged=said), as_called)

    assert [record.merged for record in merged.records] == [(), ("a", "b"), ("c",)]
    assert [record.merged for record in merged.after(claim(None), as_called).records] == [(), (), ()]


def cached(number: int) -> CachedRounds:
    return NO_ROUNDS.after(claim(rounds(*range(number))), as_called)


@pytest.mark.parametrize(("room", "kept"), [(6, [2, 2, 2]), (5, [0, 2, 2]), (2, [0, 0, 2]), (1, [0, 0, 0])])
def test_the_jobs_that_were_claimed_first_make_room(room: int, kept: list[int]) -> None:
    cache = RoundCache(cached(1).bytes * room)
    for job_id in JOBS:
        cache.keep(job_id, cached(1))
        cache.keep(job_id, cached(2))

    assert [len(cache.of(job_id).records) for job_id in JOBS] == kept


def test_a_job_that_is_dropped_makes_room() -> None:
    cache = RoundCache(cached(2).bytes)
    cache.keep(JOBS[0], cached(1))
    cache.drop(JOBS[0])
    cache.drop(JOBS[0])
    cache.keep(JOBS[1], cached(2))

    assert [len(cache.of(job_id).records) for job_id in JOBS] == [0, 2, 0]
