"""Which fault strikes at which tick, and whom: a pure function of the seed, so that a run can be repeated.

Kinds are dealt like cards: every kind comes once before any comes again, in an order that the seed shuffles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from random import Random
from typing import TypeVar

T = TypeVar("T")

# Two of each pool: what one loses, the other takes over, however long a restart takes on this machine.
IO_WORKERS = ("io-1", "io-2")
CPU_WORKERS = ("cpu-1", "cpu-2")
WORKERS = (*IO_WORKERS, *CPU_WORKERS)
APIS = ("api-1", "api-2")
PROXIED = ("api-1", "io-1", "cpu-1")
"""These reach PostgreSQL and the broker over TCP, through the proxies; the others through Unix sockets. And, as on
another machine, nobody sees that they were killed: their leases decide."""


class Kind(StrEnum):
    """What can go wrong here."""

    KILL_WORKER = "kill_worker"  # kill -9, with its children
    KILL_API = "kill_api"  # kill -9
    KILL_CPU_CHILD = "kill_cpu_child"  # kill -9 of one process of the cpu worker, busy or not
    OUT_OF_MEMORY = "out_of_memory"  # kill -9 of the cpu worker's largest process that runs a step
    TERMINATE = "terminate"  # SIGTERM to a worker or an API
    FREEZE_WORKER = "freeze_worker"  # SIGSTOP past the lease, then SIGCONT
    BROKER_EMPTY_RESTART = "broker_empty_restart"  # kill -9 and a restart with an empty store
    BROKER_FLUSHALL = "broker_flushall"
    BROKER_TORN_RESTART = "broker_torn_restart"  # kill -9 and a restart on a file that a power cut has torn
    BROKER_REFUSES = "broker_refuses"  # it answers MISCONF, READONLY, NOREPLICAS or OOM for a while
    BROKER_POISON = "broker_poison"  # entries in both queues that are no wake-ups
    BROKER_CLIENT_KILL = "broker_client_kill"  # CLIENT KILL of every connection
    BROKER_HALF_OPEN = "broker_half_open"  # connections through the proxy fall silent past the lease
    DATABASE_RESTART = "database_restart"  # as `pg_ctl restart -m immediate`
    DATABASE_TERMINATE = "database_terminate"  # pg_terminate_backend of all connections
    DATABASE_HALF_OPEN = "database_half_open"
    FLOOD = "flood"  # a tenant sends small and wide jobs all at once, and cancels them
    HOSTILE_PAGE = "hostile_page"  # a tenant has pages fetched that are made to hold a process, and one that drips
    STORAGE_HARM = "storage_harm"  # the files of large outputs are other bytes, cut off, empty or gone for a while


_MOSTLY_IO = (*IO_WORKERS, *IO_WORKERS, *CPU_WORKERS)
"""An `io` worker has ten times as much in flight, so it is struck twice as often."""

TARGETS: dict[Kind, Sequence[str]] = {
    Kind.KILL_WORKER: _MOSTLY_IO,
    Kind.KILL_API: APIS,
    Kind.KILL_CPU_CHILD: CPU_WORKERS,
    Kind.OUT_OF_MEMORY: CPU_WORKERS,
    Kind.TERMINATE: (*WORKERS, *APIS),
    Kind.FREEZE_WORKER: _MOSTLY_IO,
}
"""The processes that a kind may strike; kinds that are not named here strike a server, not a process."""


SHORT_SEED = 100
"""The seed of the short run in the tests, chosen so that its recovery times measure lease and sweep: it strikes `io`
workers several times, and never two workers of a pool within eight seconds, which would leave nobody to go on."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the schedule; `target` is a process' name or the server that is struck."""

    tick: int
    kind: Kind
    target: str


def schedule(seed: int, ticks: int) -> list[Fault]:
    """Return the faults of the ticks 0 to `ticks` - 1."""
    random = Random(f"planq-chaos-faults-{seed}")
    kinds = islice(dealt(random, list(Kind)), ticks)
    return [Fault(tick, kind, random.choice(_targets(kind))) for tick, kind in enumerate(kinds)]


def _targets(kind: Kind) -> Sequence[str]:
    return TARGETS.get(kind, (kind.split("_")[0],))


def dealt(random: Random, cards: Sequence[T]) -> Iterator[T]:
    """Yield cards for ever, each once before any comes again."""
    while True:
        yield from random.sample(cards, len(cards))
