"""Who carries out what a transition has made ready: how much of it stays here, and in which messages the rest goes.

Pure. Steps of the `io` lane wait more than they compute, so a few of them are not worth a message; of many, each
worker gets its part, in a message for several steps. A `cpu` step keeps a process busy and has a message of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from shared.domain.states import Lane
from shared.ports import AnyWake, StepsWake, StepWake, Wake

FEW = 8
"""So many steps stay together: a message more costs as much as carrying out several that only wait."""

_MOST = 100
"""Steps in one message. A process that takes more than it has slots for would keep the rest from others."""


def own_share(ready: int, free: int, workers: int) -> int:
    """Return how many of `ready` steps this process takes: its part as one of `workers`, as far as it has slots."""
    part = -(-ready // max(workers, 1))
    return max(0, min(ready, free, max(part, FEW)))


def in_messages(wakes: Sequence[Wake], workers: int) -> list[AnyWake]:
    """Return wake-ups as they are published: the `io` steps of a round in even parts for the other workers."""
    messages: list[AnyWake] = []
    rounds: dict[tuple[UUID, int], list[StepWake]] = {}
    for wake in wakes:
        if isinstance(wake, StepWake) and wake.lane is Lane.IO:
            rounds.setdefault((wake.ref.job_id, wake.ref.round), []).append(wake)
        else:
            messages.append(wake)
    for steps in rounds.values():
        messages += _parts(steps, max(workers - 1, 1))
    return messages


def together(wakes: Sequence[StepWake]) -> StepsWake:
    """Return one wake-up for several steps of one round and lane; raises IndexError for none."""
    first = wakes[0]
    steps = tuple((wake.ref.index, wake.tool_name) for wake in wakes)
    return StepsWake(first.ref.job_id, first.ref.round, first.lane, steps, first.attempt)


def _parts(steps: Sequence[StepWake], others: int) -> Iterable[AnyWake]:
    size = min(_MOST, max(FEW, -(-len(steps) // others)))
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        yield part[0] if len(part) == 1 else together(part)
