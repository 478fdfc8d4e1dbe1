"""B15: fifty tenants send twenty messages a second, then one of them sends a hundred times its share as well.

What the others wait for is measured in both, in turns: from sending a message until its answer. Each message begins a
conversation of its own and is answered by the model `offline`, on as many workers as `planq up` runs. Everybody sends
at set times, however long the answers take.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure

TENANTS = 50
PER_SECOND = 20.0
TIMES_ITS_SHARE = 100
SECONDS, QUICK_SECONDS = 15, 8
MOST = 2.0
MS = 1_000.0
CONNECTIONS = 400


@dataclass(frozen=True, slots=True)
class Sender:
    """A tenant and its key."""

    tenant_id: str
    key: str


@dataclass
class Phase:
    """What was measured while the noisy tenant sent so many times its share."""

    waits: list[float] = field(default_factory=list)
    """How long the others waited for their answers, in seconds."""

    noise: Counter[int] = field(default_factory=Counter)
    """With which statuses the noisy tenant was answered."""

    @property
    def p95(self) -> float:
        """The wait that one in twenty exceeds."""
        return statistics.quantiles(self.waits, n=20)[-1]


def measure(context: Context) -> list[Figure]:
    """Let it be still and noisy in turns, after a still phase that does not count."""
    database_url = context.create_migrated()
    senders = asyncio.run(tenants(database_url, TENANTS))
    with context.planq(env={"DATABASE_URL": database_url}) as stack:
        seconds = context.either(SECONDS, QUICK_SECONDS)
        still, noisy = run(alternating(stack.url, senders, context.repeats, seconds))
    noise = sum((phase.noise for phase in noisy), Counter[int]())
    return [
        Figure(
            f"B15 p95 of {TENANTS - 1} tenants, one sends {TIMES_ITS_SHARE} times its share",
            MS * statistics.median(phase.p95 for phase in noisy),
            "ms",
            limits={"idle": MS * statistics.median(phase.p95 for phase in still)},
            bounds=[Bound(MOST, "idle")],
            samples=[MS * phase.p95 for phase in noisy],
            note=f"of the noisy tenant's messages {noise[200]} were answered, {noise[429]} refused",
        )
    ]


async def tenants(database_url: str, count: int) -> Sequence[Sender]:
    """Make so many tenants, each with a key."""
    async with Database(database_url, max_connections=1) as database:
        store, keys = TenantStore(database), ApiKeyStore(database)
        made = []
        for number in range(1, count + 1):
            tenant = await store.create(f"tenant-{number}", "", TenantConfig(model="offline", strategy="react"))
            _, key = await keys.create(tenant.id, "bench", frozenset({KeyScope.MESSAGES}), None)
            made.append(Sender(tenant.id, key))
        return made


async def alternating(
    url: str, senders: Sequence[Sender], rounds: int, seconds: float
) -> tuple[Sequence[Phase], Sequence[Phase]]:
    """Return what was measured in so many still and noisy phases of so many seconds."""
    await phase(url, senders, seconds, times=1)
    found = [(await phase(url, senders, seconds, times=1), await phase(url, senders, seconds)) for _ in range(rounds)]
    return [still for still, _ in found], [noisy for _, noisy in found]


async def phase(url: str, senders: Sequence[Sender], seconds: float, *, times: int = TIMES_ITS_SHARE) -> Phase:
    """Let all send for so many seconds, the first one so many times its share, and await all answers."""
    found = Phase()
    noisy, *others = senders
    pause = len(senders) / PER_SECOND
    async with Client(url, connections=CONNECTIONS) as client, asyncio.TaskGroup() as sending:
        await client.answering()
        begun = perf_counter()
        for number in range(int(seconds / pause * times)):
            sending.create_task(_shout(client, noisy, begun + number * pause / times, found))
        for place, sender in enumerate(others, 1):
            for number in range(int(seconds / pause)):
                at = begun + (number + place / len(senders)) * pause
                sending.create_task(_ask(client, sender, at, found))
    return found


async def _ask(client: Client, sender: Sender, at: float, found: Phase) -> None:
    await asyncio.sleep(at - perf_counter())
    status = await _send(client, sender)
    found.waits.append(perf_counter() - at)
    if status != 200:
        raise RuntimeError(f"{sender.tenant_id}: expected an answer, found {status}")


async def _shout(client: Client, sender: Sender, at: float, found: Phase) -> None:
    await asyncio.sleep(at - perf_counter())
    found.noise[await _send(client, sender)] += 1


async def _send(client: Client, sender: Sender) -> int:
    body = {
        "tenant_id": sender.tenant_id,
        "channel": "web",
        "from": {"external_id": "user-1"},
        "content": {"text": "calculate 40 + 2"},
    }
    answer = await client.post("/messages/inbound", body, headers={"Authorization": f"Bearer {sender.key}"})
    return answer.status
