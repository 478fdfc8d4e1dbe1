"""What one wake-up led to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.domain.errors import ErrorRecord
from shared.ports import Wake


@dataclass(frozen=True, slots=True)
class Carried:
    """The outcome of carrying out one wake-up.

    `attempt` is None when there was nothing to do: the claim found the work taken, over or not yet due. `error` is
    what the stage or step failed with. `wakes` are to be carried out next. `poisoned` says that a thread which cannot
    be stopped still runs a tool here, so that a `cpu` process should be replaced. `is_late` says that the outcome was
    rejected, because the attempt had ended otherwise (taken back, cancelled, expired).
    """

    attempt: int | None = None
    wakes: Sequence[Wake] = ()
    error: ErrorRecord | None = None
    poisoned: bool = False
    is_late: bool = False

    @property
    def text(self) -> str:
        """Return the outcome in a word or two, as Flower shows it."""
        if self.attempt is None:
            return "nothing to do"
        if self.is_late:
            return "rejected: too late"
        return "succeeded" if self.error is None else f"failed: {self.error.code}"

    @classmethod
    def landed(
        cls,
        landed: bool,
        wakes: Sequence[Wake],
        *,
        attempt: int,
        error: ErrorRecord | None = None,
        poisoned: bool = False,
    ) -> Carried:
        """Return an outcome whose wake-ups count only when its transition landed."""
        return cls(attempt=attempt, wakes=wakes if landed else (), error=error, poisoned=poisoned, is_late=not landed)
