"""The rounds of jobs that a worker process has read, so that its next claims need not return them again.

A round that is over does not change. So a claim says which rounds the worker has, and returns those after them. Where
it has none, or the database has lost what it has, the claim returns all.
"""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

from planq.shared.kernel.store.codec import NO_ROUNDS, CachedRounds

MAX_BYTES = 32 * 1024 * 1024
"""Maximum size of the cached rounds of a process, as JSON. In memory they take several times as much."""


class RoundCache:
    """The cached rounds of a process: those of the jobs that it claimed last."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """`max_bytes` bounds the JSON of all rounds."""
        self._max_bytes = max_bytes
        self._jobs: OrderedDict[UUID, CachedRounds] = OrderedDict()
        self._bytes = 0

    def of(self, job_id: UUID) -> CachedRounds:
        """Return the rounds of a job; `NO_ROUNDS` where none are cached."""
        return self._jobs.get(job_id, NO_ROUNDS)

    def keep(self, job_id: UUID, rounds: CachedRounds) -> None:
        """Cache the rounds of a job in place of those before, and drop those of the jobs that were claimed first."""
        self.drop(job_id)
        self._jobs[job_id] = rounds
        self._bytes += rounds.bytes
        while self._bytes > self._max_bytes:
            self.drop(next(iter(self._jobs)))

    def drop(self, job_id: UUID) -> None:
        """Drop the rounds of a job; it may have none."""
        self._bytes -= self._jobs.pop(job_id, NO_ROUNDS).bytes
