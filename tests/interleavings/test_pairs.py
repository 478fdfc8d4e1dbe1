"""What two operations come to at once is what one of both orders gives; no pair breaks an invariant."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from types import ModuleType

import pytest

from planq.shared.platform import database as database_module
from tests.interleavings import batches, conversations, jobs
from tests.interleavings.arena import Arena, Series, Sessions

SHARE = 12
"""A quick run takes every so many pairs of a row; the rows begin at different ones."""

ROWS_SHARE = 3
"""A quick run takes every so many rows; in what the other ones begin, these come second."""

_SENT_BEFORE = (
    "the message has its number before it waits for the end of the turn, so it stands before that turn's reply, not "
    "after it; it interrupts the turn that follows all the same"
)

NOT_SERIAL = {
    **{
        (ends, "message that interrupts"): _SENT_BEFORE
        for ends in ("complete turn", "fail turn", "cancel turn", "expire turn")
    },
    ("cancel held turn", "erase"): (
        "who erases has seen the turn unfinished, and settles it: it has a number and a reply, which is erased too"
    ),
}
"""Pairs that are as no order in series, and why each may stay: what differs is told to nobody in a wrong way."""

ROWS = [
    pytest.param(
        kind,
        place,
        id=f"{kind.__name__.rpartition('.')[2]}: {operation.name}",
        marks=[pytest.mark.whole] if place % ROWS_SHARE else [],
    )
    for kind in (jobs, conversations, batches)
    for place, operation in enumerate(kind.OPERATIONS)
]


@pytest.fixture(scope="module")
def series() -> dict[str, Series]:
    """What each kind's pairs come to in series, from row to row: two rows ask for each order of a pair."""
    return defaultdict(dict)


@pytest.mark.parametrize(("kind", "place"), ROWS)
def test_an_operation_beside_every_other_one_is_as_if_it_came_before_or_after_it(
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    series: dict[str, Series],
    kind: ModuleType,
    place: int,
    whole: bool,
) -> None:
    """One that passes over what others hold may also leave everything as it was: the next sweep does it."""
    monkeypatch.setattr(database_module, "_TRIES", 1)  # nothing is done a second time, so a deadlock shows
    first, others = kind.OPERATIONS[place], kind.OPERATIONS

    async def inside() -> None:
        async with Sessions(database_url).opened() as sessions:
            arena = Arena(kind.build, sessions, series[kind.__name__])
            for second in others if whole else others[place // ROWS_SHARE % SHARE :: SHARE]:
                meeting = await arena.meet(first, second)
                is_serial = meeting.is_serial or meeting.is_passed_over
                assert is_serial != ((first.name, second.name) in NOT_SERIAL), meeting.difference()

    asyncio.run(inside())
