"""The circuit breakers of a process: one for each provider and tenant, for tenants may have keys of their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.domain.errors import ExecutionFailed, FirstTokenTimedOut, TimedOut, Transient
from shared.domain.models.circuit import Circuit
from shared.domain.models.names import Provider

_KEPT = 10_000
"""How many circuits are kept; those that were not used for longest go first."""

_FAILURES = (Transient, TimedOut, FirstTokenTimedOut)


class CircuitOpen(Transient):
    """The provider has failed several times in a row, and is not asked for a while."""


class Circuits:
    """Those of one process; for its event loop alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds and never goes back."""
        self._clock = clock
        self._circuits: OrderedDict[tuple[Provider, str], Circuit] = OrderedDict()

    @contextmanager
    def around(self, provider: Provider, tenant_id: str) -> Iterator[None]:
        """Let a call through, and note how it ends; raises `CircuitOpen` where none is let through now."""
        circuit = self._of(provider, tenant_id)
        if not circuit.admits(self._clock()):
            left = max(circuit.seconds_left(self._clock()), 0.0)
            raise CircuitOpen(
                f"{provider.value} has failed {circuit.threshold} times in a row and is asked again in {left:.0f} s"
            )
        try:
            yield
        except ExecutionFailed as error:
            circuit.ended(self._clock(), failed=isinstance(error, _FAILURES))
            raise
        except BaseException:
            circuit.let_go()
            raise
        circuit.ended(self._clock(), failed=False)

    def _of(self, provider: Provider, tenant_id: str) -> Circuit:
        key = provider, tenant_id
        circuit = self._circuits.setdefault(key, Circuit())
        self._circuits.move_to_end(key)
        if len(self._circuits) > _KEPT:
            self._circuits.popitem(last=False)
        return circuit
