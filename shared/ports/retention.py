"""What the scheduled retention needs: removing, batch by batch, what has been kept for long enough."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Removed:
    """What one batch removed: `kind` is the status of the jobs, or `payloads`; `count` is never 0."""

    kind: str
    count: int


class RetentionStore(Protocol):
    """Jobs that have ended, and the large values that nobody refers to any more."""

    def remove(self) -> AsyncIterator[Removed]:
        """Remove what has been kept for long enough, oldest first, each batch bounded and committed by itself.

        Ends when nothing is left to remove, or others are at it. Whoever iterates sets the pace. Raises `Unavailable`
        when the database or an object store does not answer; what was yielded is done.
        """
        ...
