"""What one wake-up led to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.domain.errors import ErrorRecord
from shared.domain.ids import StepRef
from shared.ports import Moved, StageClaim, StepClaim, UnitStep, Wake
from worker.engine.follow import after_step


@dataclass(frozen=True, slots=True)
class Carried:
    """The outcome of carrying out one wake-up.

    `attempt` is None when there was nothing to do: the claim found the work taken, over or not yet due. `error` is
    what the stage or step failed with. `taken` and `wakes` are what it led to: what this process has claimed already,
    and what anybody may carry out. `poisoned` says that a thread which cannot be stopped still runs a tool here, so
    that a `cpu` process should be replaced. `is_late` says that the outcome was rejected, because the attempt had
    ended otherwise (taken back, cancelled, expired). `steps` counts the attempts of a wake-up for several steps.
    `unit` are the further steps of its unit.
    """

    attempt: int | None = None
    wakes: Sequence[Wake] = ()
    taken: Sequence[StageClaim | StepClaim] = ()
    error: ErrorRecord | None = None
    poisoned: bool = False
    is_late: bool = False
    steps: int | None = None
    unit: Sequence[UnitStep] = ()

    @property
    def text(self) -> str:
        """Return the outcome in a word or two, as Flower shows it."""
        if self.steps:
            return f"{self.steps} steps"
        if self.attempt is None:
            return "nothing to do"
        if self.is_late:
            return "rejected: too late"
        return "succeeded" if self.error is None else f"failed: {self.error.code}"

    @classmethod
    def by(
        cls,
        claim: StageClaim | StepClaim,
        moved: Moved,
        *,
        error: ErrorRecord | None = None,
        poisoned: bool = False,
    ) -> Carried:
        """Return the outcome of an attempt from its last transition; one that did not land led to nothing."""
        wakes: Sequence[Wake] = ()
        if moved.landed:
            ref = claim.ref if isinstance(claim, StepClaim) else StepRef(claim.job_id, claim.round, 0)
            wakes = after_step(ref, moved)
        return cls(claim.attempt, wakes, moved.taken, error, poisoned, is_late=not moved.landed)
