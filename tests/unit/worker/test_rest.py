"""What processes at rest ask the database for in a minute: an API, three workers for `io` and one for `cpu`.

The minute is that of a loop whose clock goes on at once to the next timer, so the machine's speed counts for nothing.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from planq.api import app as api
from planq.api.access.limits import RateLimits
from planq.shared.broker.celery_config import create_celery
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Pool
from planq.shared.platform.database import QUERIES, Database, Rows
from planq.shared.settings.settings import Settings
from planq.shared.subjects.batches.provider_store import ProviderBatches
from planq.shared.subjects.webhooks.deliveries import PostgresDeliveries
from planq.worker.batches import HOLD, ProviderBatchDuty
from planq.worker.container import WorkerIdentity
from planq.worker.engine.lease import Lease
from planq.worker.engine.running import InFlightWork
from planq.worker.runtime import lifecycle
from planq.worker.runtime.lifecycle import HeartbeatParts, Lifecycle
from planq.worker.runtime.reconcile import LoopInFlight
from planq.worker.runtime.turns import Turns
from planq.worker.webhooks.sender import DeliverySender

SETTLED, MINUTE = 62.5, 60.0
MOST = 300
NOWHERE = "redis://127.0.0.1:1/0"

NAMES = {text: name for name, text in QUERIES.items()}


class LeapingSelector(selectors.SelectSelector):
    """Moves the clock on where a loop would wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:  # a thread is waited for
            return super().select()
        self.now += timeout
        return super().select(0)


class Idle:
    """The answers of a database without work, to all who `ask`; `asked` are the statements."""

    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.workers = [
            WorkerIdentity(new_id(), f"{pool}-{number}", pool, 4, 3)
            for pool, count in ((Pool.IO, 3), (Pool.CPU, 1))
            for number in range(count)
        ]
        alive = [{"id": str(one.id), "pools": [one.pool], "only_priority": None} for one in self.workers]
        self._answers: Mapping[str, Mapping[str, Any]] = {
            "heartbeat": {"holds": False, "alive": sorted(alive, key=lambda one: str(one["id"]))},
            "due_batches": {"is_due": False},
            "is_anybody_learning": {"found": False},
            "unanswered_wakes": {"n": 0},
            "planq_tally": {"planq_tally": 0},
        }

    async def run(self, statement: bytes, *_: object, **__: object) -> Rows:
        name = NAMES.get(statement) or statement.decode().partition("FROM ")[2].partition("(")[0]
        self.asked[name] += 1
        return Rows([dict(self._answers[name])] if name in self._answers else ())


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Idle:
    idle = Idle()

    async def nothing(*_: object, **__: object) -> None:
        """Stands for what opens connections."""

    async def listening(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Database, "_run", lambda _, *given, **named: idle.run(*given, **named))
    for name in ("open", "close"):
        monkeypatch.setattr(Database, name, nothing)
    for module in (lifecycle, api):
        monkeypatch.setattr(module, "listen", listening)
    monkeypatch.setattr(lifecycle, "announce", nothing)
    monkeypatch.setattr(Lifecycle, "_retain", nothing)
    monkeypatch.setattr(RateLimits, "close", nothing)
    return idle


def test_processes_at_rest_ask_for_little(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    selector = LeapingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    monkeypatch.setattr(lifecycle, "monotonic", loop.time)
    monkeypatch.setattr(lifecycle, "Turns", partial(Turns, loop.time))
    settings = Settings(database_url="postgresql:///nowhere", broker_url=NOWHERE)

    async def minute() -> Counter[str]:
        async with AsyncExitStack() as stack:
            for identity in idle.workers:
                await start_worker(settings, identity, loop, stack)
            database = Database(settings.database_url, max_connections=1)
            await stack.enter_async_context(api._running(settings, api._compose(settings, database), database))
            await passed(SETTLED)
            idle.asked.clear()
            await passed(MINUTE)
            return Counter(idle.asked)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        asked = runner.run(minute())
    assert asked["heartbeat"] == 4 * 12
    assert asked["sweep_look"] in range(128, 136), "twice a second by all, and seldom by the `cpu` worker"
    assert asked["planq_claim_deliveries"] == asked["planq_take_provider_batch"] == 3
    assert asked.total() < MOST, asked


async def passed(seconds: float) -> None:
    """Return once the clock of the loop, which leaps, has gone on so far."""
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, event.set)
    await event.wait()


async def start_worker(
    settings: Settings, identity: WorkerIdentity, loop: asyncio.AbstractEventLoop, stack: AsyncExitStack
) -> None:
    work = InFlightWork()
    here = LoopInFlight(SimpleNamespace(loop=None), work)  # type: ignore[arg-type]
    parts = HeartbeatParts(
        here=here,
        lease=Lease(settings.lease),
        processes=None,
        loop_of=lambda: None,
        received=lambda: 0,
        restart=lambda: pytest.fail("it is not deaf"),
    )
    tools: Any = SimpleNamespace(agent_services=SimpleNamespace(counts={}))
    living = Lifecycle(settings, identity, tools, create_celery(NOWHERE), parts)
    living._loop.close()
    living._loop = loop
    await living._open()
    stack.push_async_callback(living._close)
    if identity.pool == Pool.IO:
        database, pause = living._database, timedelta(minutes=1)
        deliveries = PostgresDeliveries(database, identity.id, settings.lease, pause)
        sender = DeliverySender(deliveries, SimpleNamespace(), {})  # type: ignore[arg-type]
        batches = ProviderBatches(database, identity.id, pause, HOLD)
        duty = ProviderBatchDuty(batches, SimpleNamespace(), pause)  # type: ignore[arg-type]
        for started in (sender, duty):
            started.start()
            stack.push_async_callback(started.close)
