"""The circuit breaker of one model: after failures of several jobs, not calls, only probes pass."""

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
    """Several jobs could not reach the model, and this call was not sent; the message begins with their error."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A job's next turn at open circuits: after `wait`, or as soon as one of the `models` answers."""

    models: tuple[str, ...]
    wait: timedelta


class CircuitState(StrEnum):
    """Whether all calls pass, or probes only."""

    CLOSED = "closed"
    OPEN = "open"


@dataclass(slots=True)
class Circuit:
    """Failures of `threshold` different jobs without a success in between open it; one success closes it.

    While open, one call passes per `probe_seconds` of a monotonic clock. The job that failed last waits for two
    intervals: its own request may be the fault.
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
        """Return whether a job may call now; at an open circuit that call is the probe."""
        if self.state is CircuitState.CLOSED:
            return True
        turns = 2 if job_id == self._last_failed else 1
        if now < self._probed_at + turns * self.probe_seconds:
            return False
        self._probed_at = now
        return True

    def turn(self, now: float, jitter: float) -> float | None:
        """Return the seconds until a job's next turn, one per probe interval; None while closed. `jitter` is in
        [0, 1).
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
        """Record a call that could not reach the model."""
        self._last_failed = job_id
        if self.state is CircuitState.CLOSED:
            self._failed_jobs.add(job_id)
            self._probed_at = now  # counts from the failure that opens it

    def succeeded(self) -> None:
        """Record a call that the server answered, even with a refusal."""
        self._failed_jobs.clear()
        self._last_turn = 0.0
