"""How long a process has heard nothing of itself, before it judges others."""

from __future__ import annotations

from collections.abc import Callable

_NEW_SECONDS = 2.0
"""Twice what a worker that cannot reach the database pauses between two beats."""

_EVER_SECONDS = 86_400.0


class Silence:
    """How long this process could not beat itself, and for how long that still counts.

    After such a gap perhaps nobody could: the leases of others get as much time again before they are judged, or the
    first worker to reach a database that was away would take everybody for dead. A process that has just begun cannot
    know of a gap: it judges nobody before those who live have had time to beat.
    """

    def __init__(self, lease_seconds: float, clock: Callable[[], float]) -> None:
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._beat_at: float | None = None  # a process that has never beaten has missed none
        self._gap_seconds = 0.0
        self._gap_until = 0.0

    def beat(self) -> None:
        """Take note of a heartbeat that applied."""
        now = self._clock()
        if self._beat_at is None:
            self._gap_seconds, self._gap_until = _EVER_SECONDS, now + min(self._lease_seconds, _NEW_SECONDS)
        elif now - self._beat_at > self._lease_seconds:
            self._gap_seconds, self._gap_until = now - self._beat_at, now + self._lease_seconds
        self._beat_at = now

    @property
    def seconds(self) -> float:
        """Return by how much to lengthen the leases of others."""
        now = self._clock()
        if self._beat_at is not None and now - self._beat_at > self._lease_seconds:
            return now - self._beat_at
        return self._gap_seconds if now < self._gap_until else 0.0
