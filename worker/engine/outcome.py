"""What one attempt at a step came to, before anybody has been told."""

from __future__ import annotations

from dataclasses import dataclass

from shared.domain.errors import ExecutionFailed, StorageUnavailable
from shared.domain.retry import Phase
from shared.ports import Delegated, Suspended
from worker.engine.values import ReadyOutput


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attempt came to; with a `failure` also in which `phase`."""

    output: ReadyOutput | None = None
    suspended: Suspended | None = None
    delegated: Delegated | None = None
    failure: ExecutionFailed | StorageUnavailable | None = None
    poisoned: bool = False
    phase: Phase = Phase.CALLING

    @property
    def small(self) -> ReadyOutput | None:
        """Return the output where the step has succeeded with a small one, None in any other case."""
        if self.output is None or self.output.excerpts is not None or self.output.beside is not None:
            return None
        return self.output
