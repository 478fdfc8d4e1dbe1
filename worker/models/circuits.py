"""The circuit breakers of a process: one for each model and tenant, because tenants may have their own keys.

A provider has one base URL in a process, so a circuit belongs to one base URL, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import SystemRandom

from planq.shared.agentic.models.circuit import Circuit, CircuitOpen
from planq.shared.platform.errors import (
    ExecutionFailed,
    FirstTokenTimedOut,
    InvalidOutput,
    TimedOut,
    Transient,
    UnreadableReply,
)

_RANDOM = SystemRandom()

_KEPT = 10_000
"""Maximum number of circuits kept; the least recently used are dropped."""

_AWAY = (Transient, TimedOut, FirstTokenTimedOut)


@dataclass(slots=True)
class _CircuitEntry:
    circuit: Circuit = field(default_factory=Circuit)
    cause: str = ""


class Circuits:
    """The circuit breakers of one process; for its event loop alone."""

    def __init__(self, clock: Callable[[], float], draw: Callable[[], float] = _RANDOM.random) -> None:
        self._clock = clock
        self._draw = draw
        self._circuits: OrderedDict[tuple[str, str], _CircuitEntry] = OrderedDict()

    @contextmanager
    def around(self, model: str, tenant_id: str, job_id: str) -> Iterator[None]:
        """Let a call through and note its end, or raise `CircuitOpen`; an unreadable reply does not count."""
        kept = self._of(model, tenant_id)
        if not kept.circuit.admits(job_id, self._clock()):
            raise CircuitOpen(f"{kept.cause} (so it was for several jobs in a row; until one succeeds few are sent)")
        try:
            yield
        except (UnreadableReply, InvalidOutput):
            raise
        except ExecutionFailed as error:
            if isinstance(error, _AWAY):
                kept.circuit.failed(job_id, self._clock())
                kept.cause = error.message
            else:
                kept.circuit.succeeded()
            raise
        kept.circuit.succeeded()

    def turn(self, model: str, tenant_id: str) -> float | None:
        """Return the seconds until a job's next turn at an open circuit; None if it is closed."""
        return self._of(model, tenant_id).circuit.turn(self._clock(), self._draw())

    def _of(self, model: str, tenant_id: str) -> _CircuitEntry:
        key = model, tenant_id
        kept = self._circuits.setdefault(key, _CircuitEntry())
        self._circuits.move_to_end(key)
        if len(self._circuits) > _KEPT:
            self._circuits.popitem(last=False)
        return kept
