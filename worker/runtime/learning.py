"""The look at jobs that have ended, from which insights are learned: a duty of `io` workers."""

from __future__ import annotations

from planq.shared.subjects.insights.learning import Learning

_STRETCHES = 20
"""Read one after the other before the duty rests: a backlog goes on with the next look."""


async def learn_all(learning: Learning) -> int:
    """Learn from what is new; return how many events were read.

    Raises `DatabaseUnavailable`.
    """
    read = 0
    for _ in range(_STRETCHES):
        if not (count := await learning.learn()):
            break
        read += count
    return read
