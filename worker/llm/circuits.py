"""The circuit breakers of a process: one for each model and tenant, for tenants may have keys of their own.

A provider has one base URL in a process, so that a circuit is of one base URL, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from planq.shared.domain.errors import (
    ExecutionFailed,
    FirstTokenTimedOut,
    InvalidOutput,
    TimedOut,
    Transient,
    UnreadableReply,
)
from planq.shared.domain.models.circuit import Circuit

_KEPT = 10_000
"""How many circuits are kept; those that were not used for longest go first."""

_AWAY = (Transient, TimedOut, FirstTokenTimedOut)


class CircuitOpen(Transient):
    """Several jobs have found the model away, and this call was not sent; the message begins with what they found."""


@dataclass(slots=True)
class _CircuitEntry:
    circuit: Circuit = field(default_factory=Circuit)
    cause: str = ""


class Circuits:
    """Those of one process; for its event loop alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds and never goes back."""
        self._clock = clock
        self._circuits: OrderedDict[tuple[str, str], _CircuitEntry] = OrderedDict()

    @contextmanager
    def around(self, model: str, tenant_id: str, job_id: str) -> Iterator[None]:
        """Let a call through, and note how it ends; raises `CircuitOpen` where none is let through now.

        A reply that cannot be read counts neither way: it may be the fault of the request. So does a call that is
        given up.
        """
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

    def _of(self, model: str, tenant_id: str) -> _CircuitEntry:
        key = model, tenant_id
        kept = self._circuits.setdefault(key, _CircuitEntry())
        self._circuits.move_to_end(key)
        if len(self._circuits) > _KEPT:
            self._circuits.popitem(last=False)
        return kept
