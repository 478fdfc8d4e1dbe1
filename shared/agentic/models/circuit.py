"""The circuit breaker of one model: while several jobs in a row find it away, only probes are let through.

It counts jobs, so that one job whose own request makes the model fail opens nothing, however often it fails. It
measures no time itself; `now` are seconds of one clock that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from planq.shared.platform.errors import Transient

LONGEST_TURN_SECONDS = 300.0
"""Maximum time that a job sleeps before its next turn at an open circuit."""

_TURN_INTERVALS = 1.25
"""Probe intervals between two turns: with the jitter of both, at least one."""


class CircuitOpen(Transient):
    """Several jobs have found the model away, and this call was not sent; the message begins with what they found."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A job's next turn at open circuits: after `wait`, or as soon as one of the `models` answers."""

    models: tuple[str, ...]
    wait: timedelta


class CircuitState(StrEnum):
    """Whether all calls are let through, or probes alone."""

    CLOSED = "closed"
    OPEN = "open"


@dataclass(slots=True)
class Circuit:
    """`threshold` different jobs that failed, without a success in between, open it; one success closes it.

    While it is open one call is let through every `probe_seconds`. The job that failed last leaves the next turn
    to another one, and probes only where none has come by then: it may be the one whose request is the fault.
    """

    threshold: int = 5
    probe_seconds: float = 2.0
    _failed_jobs: set[str] = field(default_factory=set)
    _last_failed: str = ""
    _probed_at: float = 0.0
    _last_turn: float = 0.0

    @property
    def state(self) -> CircuitState:
        return CircuitState.OPEN if len(self._failed_jobs) >= self.threshold else CircuitState.CLOSED

    def admits(self, job_id: str, now: float) -> bool:
        """Say whether a call of a job may be made now; of an open circuit it is the probe then."""
        if self.state is CircuitState.CLOSED:
            return True
        turns = 2 if job_id == self._last_failed else 1
        if now < self._probed_at + turns * self.probe_seconds:
            return False
        self._probed_at = now
        return True

    def turn(self, now: float, jitter: float) -> float | None:
        """Return the seconds until a job's next turn; None while the circuit is closed.

        Each job gets a turn of its own, `probe_seconds` after the one before, so that the jobs that wait make one
        claim per probe interval however many they are. `jitter` is a uniform draw from [0, 1).
        """
        if self.state is CircuitState.CLOSED:
            return None
        latest = now + LONGEST_TURN_SECONDS
        self._last_turn = min(max(self._last_turn, now) + _TURN_INTERVALS * self.probe_seconds, latest)
        wait = self._last_turn - now
        if self._last_turn == latest:
            return wait * (1 - jitter / 2)  # many share this turn
        return wait + jitter * (_TURN_INTERVALS - 1) * self.probe_seconds

    def failed(self, job_id: str, now: float) -> None:
        """Take note of a call that found the model away."""
        self._last_failed = job_id
        if self.state is CircuitState.CLOSED:
            self._failed_jobs.add(job_id)
            self._probed_at = now  # counts from the failure that opens it

    def succeeded(self) -> None:
        """Take note of a call that was answered, be it by a refusal: the model is there."""
        self._failed_jobs.clear()
        self._last_turn = 0.0
