"""Dying at every point between two writes: another worker goes on, nothing is lost, nothing finished runs again.

Each test starts a real worker that ends itself at one point (`shared.failpoints`), sees it die there, starts another
one and sees the job reach its right end (`tests/faults/reaching.py` says how each point is reached).
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import pytest

from shared.failpoints import point_names
from tests.faults.conftest import Play, Stage
from tests.faults.reaching import REACH, UNSAFE, Recipe, windowed
from worker.container import CRASH_POINTS

POINTS = point_names(CRASH_POINTS)


def die_and_go_on(point: str, recipe: Recipe, stage: Stage) -> None:
    with stage() as scene:
        recipe(scene, point)
        scene.sound()


def play_of(name: str, point: str, recipe: Recipe) -> object:
    # Before a write nothing has happened that the point after the one before it would not show.
    marks = [pytest.mark.whole] if point.endswith(":before") else []
    return pytest.param((name, partial(die_and_go_on, point, recipe)), id=name, marks=marks)


EVERYWHERE = [play_of(p, p, REACH[p.partition(":")[0]]) for p in POINTS if p.partition(":")[0] in REACH]
HELD = [
    play_of(f"{point} with steps held", point, windowed)
    for point in ("store.accept_plan:after", "store.succeed_step:before", "store.succeed_step:after")
]
UNSAFELY = [play_of(f"{point} of an unsafe tool", point, recipe) for point, recipe in UNSAFE.items()]


def test_every_crash_point_is_reached() -> None:
    """A port method that is added needs a recipe in `REACH`, and every recipe its method."""
    assert {point.partition(":")[0] for point in POINTS} == set(REACH)
    assert set(UNSAFE) <= set(POINTS)


@pytest.mark.parametrize("play", [*EVERYWHERE, *UNSAFELY, *HELD])
def test_a_worker_that_dies_there_loses_nothing_and_repeats_nothing(
    play: tuple[str, Play], plays: dict[str, Future[None]]
) -> None:
    plays[play[0]].result()
