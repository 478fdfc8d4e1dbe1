"""Dying at every point between two writes: another worker goes on, nothing is lost, nothing finished runs again.

Each test starts a real worker that ends itself at one point (`planq.shared.failpoints`), sees it die there, starts
another one and sees the job reach its right end (`tests/faults/reaching.py` says how each point is reached).
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import pytest

from planq.shared.failpoints import point_names
from planq.worker.container import CRASH_POINTS
from tests.faults.batching import each_line_once
from tests.faults.chaining import chained
from tests.faults.conftest import Play, Stage
from tests.faults.conversing import turns, unsettled
from tests.faults.ending import unkept
from tests.faults.reaching import REACH, UNSAFE, Recipe, ahead, stopped_in_a_stage, wide, windowed

POINTS = point_names(CRASH_POINTS)


def die_and_go_on(point: str, recipe: Recipe, stage: Stage) -> None:
    with stage() as scene:
        recipe(scene, point)
        scene.sound()


LOOKS = {
    *("catalogue.tools", "payloads.get", "store.approvals", "store.children", "store.holds_step", "turns.history"),
    *("store.steps_to_ask_about", "texts.followed", "worker_registry.held", "worker_registry.unanswered_wakes"),
    *("schedule_sweep.due", "sweep.due_timers", "sweep.expired_jobs", "sweep.expired_plans", "sweep.look"),
    *("question_sweep.expired", "sweep.lost_stages", "sweep.lost_steps", "sweep.tidy"),
    *("sweep.missed_tools", "sweep.unserved_ends", "sweep.with_jobs"),
}
"""What only looks, or removes what is over: a worker that dies after it has changed nothing yet for a job."""


DOUBLES = {
    *("memory.change_user", "memory.emit", "memory.schedule", "line_sweep.cancel", "question_sweep.expire"),
    *("worker_registry.heartbeat", "worker_registry.publish_tools", "worker_registry.register"),
}
"""What leaves the same behind as another one does: a row of the memory, of the sweep, of a worker."""


def play_of(name: str, point: str, recipe: Recipe) -> object:
    # Before a write nothing has happened that the point after the one before it would not show.
    marks = [pytest.mark.whole] if point.endswith(":before") or point.partition(":")[0] in LOOKS | DOUBLES else []
    return pytest.param((name, partial(die_and_go_on, point, recipe)), id=name, marks=marks)


EVERYWHERE = [play_of(p, p, REACH[p.partition(":")[0]]) for p in POINTS if p.partition(":")[0] in REACH]
HELD = [
    play_of(f"{point} with steps held", point, windowed)
    for point in ("store.accept_plan:after", "store.succeed_step:before", "store.succeed_step:after")
]
SERVED = [
    play_of(f"{point} for a {consumer}", point, recipe)
    for point in POINTS
    for name, consumer, recipe in (
        ("store.serve_end", "turn", turns),
        ("sweep.serve_ends", "turn", unsettled),
        ("sweep.serve_ends", "line", each_line_once),
    )
    if point.partition(":")[0] == name
]
ALSO = [
    play_of(f"{name}:{edge} as {recipe.__name__}", f"{name}:{edge}", recipe)
    for name, recipe in (
        ("store.claim", wide),
        ("store.accept_plan", ahead),
        ("store.release", stopped_in_a_stage),
        ("store.retry_stage", unkept),
        ("store.note", chained),
    )
    for edge in ("before", "after")
]
UNSAFELY = [play_of(f"{point} of an unsafe tool", point, recipe) for point, recipe in UNSAFE.items()]


def test_every_crash_point_is_reached() -> None:
    """A port method that is added needs a recipe in `REACH`, and every recipe its method."""
    assert {point.partition(":")[0] for point in POINTS} == set(REACH)
    assert set(UNSAFE) <= set(POINTS)
    assert set(REACH) >= LOOKS | DOUBLES


@pytest.mark.parametrize("play", [*EVERYWHERE, *SERVED, *ALSO, *UNSAFELY, *HELD])
def test_a_worker_that_dies_there_loses_nothing_and_repeats_nothing(
    play: tuple[str, Play], plays: dict[str, Future[None]]
) -> None:
    plays[play[0]].result()
