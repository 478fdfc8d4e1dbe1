"""The window of a job: how many of its steps are out, ready or running, while the others that are ready are held.

A transition looks at the neighbourhood of one step; the window looks at all of a job, so it has a rule of its own,
which holds after each of them. The store keeps counters instead, and needs to look at nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planq.shared.domain.jobs.states import StepStatus
from planq.testing.model.events import StepView

_OUT = (StepStatus.READY, StepStatus.RUNNING)
_WAS_OUT = (*_OUT, StepStatus.WAITING)


def places_of(open_steps: int, least: int | None) -> int | None:
    """Return the window of a job whose steps have just been opened; `least` is the smallest one, None for none."""
    return None if least is None or open_steps <= least else least


def keep_window(
    before: Mapping[int, StepView],
    steps: dict[int, StepView],
    places: int | None,
    paths: Mapping[int, int],
    *,
    follows: bool,
) -> None:
    """Hold what has become ready beyond `places`; where the end of a step made room (`follows`), let others follow.

    What has waited, or was taken back from its worker, keeps its place. What has just become ready goes first, then
    what is held, each by the longest way behind it (`paths`), then in plan order.
    """
    for index, step in steps.items():
        if step.held and step.status is not StepStatus.READY:
            steps[index] = replace(step, held=False)
    if places is None:
        return
    ready = [n for n, step in sorted(steps.items()) if step.status is StepStatus.READY]
    ready.sort(key=lambda n: -paths.get(n, 0))
    fresh = [n for n in ready if not _was_out(before.get(n))]
    held = [n for n in ready if steps[n].held and n not in fresh]
    out = sum(step.status in _OUT for step in steps.values()) - len(fresh) - len(held)
    for index in fresh:
        steps[index] = replace(steps[index], held=out >= places)
        out += out < places
    for index in held[: max(places - out, 0)] if follows else ():
        steps[index] = replace(steps[index], held=False)


def _was_out(step: StepView | None) -> bool:
    return step is not None and step.status in _WAS_OUT
