"""The circuit breaker of one provider: after failures in a row its calls are refused for a while, then it is probed.

A call that gets any answer has not failed here, be it a refusal: the provider is there. Nothing counts time itself;
`now` are seconds of one clock that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CircuitState(StrEnum):
    """Whether calls are let through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True)
class Circuit:
    """`threshold` failures in a row open it for `recovery_seconds`; then `probes` calls have to succeed to close it.

    No more than that many are let through at once while it is half open, and one that fails opens it again.
    """

    threshold: int = 5
    recovery_seconds: float = 60.0
    probes: int = 2
    state: CircuitState = CircuitState.CLOSED
    _failures: int = 0
    _successes: int = 0
    _under_way: int = 0
    _failed_at: float = 0.0

    def admits(self, now: float) -> bool:
        """Say whether a call may be made; `ended` or `let_go` has to follow where it may."""
        if self.state is CircuitState.OPEN and self.seconds_left(now) <= 0:
            self.state, self._successes, self._under_way = CircuitState.HALF_OPEN, 0, 0
        if self.state is CircuitState.OPEN or (
            self.state is CircuitState.HALF_OPEN and self._successes + self._under_way >= self.probes
        ):
            return False
        self._under_way += 1
        return True

    def ended(self, now: float, *, failed: bool) -> None:
        """Take note of how a call ended that was let through."""
        self.let_go()
        if failed:
            self._failures += 1
            self._failed_at = now
            if self.state is CircuitState.HALF_OPEN or self._failures >= self.threshold:
                self.state = CircuitState.OPEN
            return
        self._successes += 1
        if self.state is CircuitState.CLOSED or (
            self.state is CircuitState.HALF_OPEN and self._successes >= self.probes
        ):
            self.state, self._failures = CircuitState.CLOSED, 0

    def let_go(self) -> None:
        """Take note that a call which was let through was given up, so that nobody knows how it would have ended."""
        self._under_way = max(self._under_way - 1, 0)

    def seconds_left(self, now: float) -> float:
        """Return how long an open circuit stays open."""
        return self._failed_at + self.recovery_seconds - now
