"""Conversations beside the jobs: threads in which messages come faster than they are answered.

Each message asks for one call with a number of its own, so that its answer is known. What stands in the database at
the end is held against what was sent: every message once, answered once, in the order in which it came, and never two
turns of a conversation at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import httpx

from tests.chaos.client import WAIT_SECONDS, Client
from tests.chaos.following import Following
from tests.chaos.observer import Observer

THREADS = 3
SECONDS_BETWEEN = 6.0
"""Between two messages of a thread: all stay below what a tenant may send in a minute, repeated ones included."""

_TURNS = """
    SELECT c.thread, m.direction, m.source_id, m.text, m.turn, m.job_id::text
    FROM conversation_messages m JOIN conversations c ON c.id = m.conversation_id
    WHERE c.channel = 'api' AND c.thread LIKE %(threads)s AND m.kind = 'message'
    ORDER BY c.thread, m.sequence
"""

_AT_ONCE = """
    SELECT c.thread, j.id::text FROM conversations c
    JOIN jobs j ON j.conversation_id = c.id AND j.parent_job_id IS NULL
    JOIN jobs k ON k.conversation_id = c.id AND k.parent_job_id IS NULL AND k.id > j.id
    WHERE c.channel = 'api' AND c.thread LIKE %(threads)s
      AND j.started_at < k.finished_at AND k.started_at < j.finished_at
"""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was taken, and the job that answers it; `value` must occur in its answer."""

    thread: str
    source_id: str
    value: int
    job: str


class Talks(Following):
    """People who talk in `THREADS` conversations over all APIs, in the way in which `client` submits jobs."""

    def __init__(self, client: Client, *, run: str) -> None:
        """`run` makes the names of threads and messages unique."""
        super().__init__()
        self._client = client
        self._run = run
        self._threads = [f"planq-chaos-{run}-{number}" for number in range(THREADS)]
        self.sent: list[Sent] = []
        self.wrong: list[str] = []

    async def stream(self, until: asyncio.Event) -> None:
        """Let everybody talk until told to stop."""
        await asyncio.gather(*(self._talk(thread, until) for thread in self._threads))

    async def defects(self, observer: Observer) -> list[str]:
        """Return what is wrong with the conversations, nothing when all is right."""
        threads = f"planq-chaos-{self._run}-%"
        rows: dict[str, list[tuple[str, str | None, str, int | None, str]]] = defaultdict(list)
        for thread, *row in await observer.ask(_TURNS, threads=threads):
            rows[thread].append((row[0], row[1], row[2], row[3], row[4]))
        found = [
            f"{thread}: {job} ran beside another turn"
            for thread, job in await observer.ask(_AT_ONCE, threads=threads)
        ]
        for thread in self._threads:
            found += self._defects_of(thread, rows[thread])
        return [*self.wrong, *found]

    def _defects_of(self, thread: str, rows: Sequence[tuple[str, str | None, str, int | None, str]]) -> list[str]:
        sent = [one for one in self.sent if one.thread == thread]
        came = Counter(source for direction, source, *_ in rows if direction == "inbound")
        found = [f"{thread}: {source} is there {count} times" for source, count in came.items() if count != 1]
        found += [f"{thread}: {one.source_id} is lost" for one in sent if one.source_id not in came]
        answered = [(job, text) for direction, _, text, _, job in rows if direction == "outbound"]
        asked = [job for direction, _, _, _, job in rows if direction == "inbound"]
        if [job for job, _ in answered] != asked:
            found.append(f"{thread}: answers of {[job for job, _ in answered]} to messages of {asked}")
        texts = dict(answered)
        found += [
            f"{thread}: the answer to {one.source_id} does not tell {one.value}: {texts.get(one.job)!r}"
            for one in sent
            if str(one.value) not in (texts.get(one.job) or "")
        ]
        return found

    async def _talk(self, thread: str, until: asyncio.Event) -> None:
        random = Random(thread)
        for number in itertools.count():
            if until.is_set():
                return
            await self._say(thread, number, random)
            with_patience = asyncio.wait_for(until.wait(), random.uniform(0, 2 * SECONDS_BETWEEN))
            await asyncio.gather(with_patience, return_exceptions=True)

    async def _say(self, thread: str, number: int, random: Random) -> None:
        """Send a message again and again until it is taken; its answer is waited for beside the next ones."""
        value = random.randrange(10**8, 10**9)
        arguments = {"value": value, "seconds": round(random.uniform(0, 3), 2)}
        source = f"{thread}-{number}"
        message = {
            "tenant_id": "default",
            "channel": "api",
            "thread": thread,
            "from": {"external_id": thread},
            "source_message_id": source,
            "content": {"text": f"call chaos_put with {json.dumps(arguments)}"},
        }
        while True:
            response = await self._client.ask(
                "POST", "/messages/inbound", params={"async_processing": "true"}, json=message
            )
            if response.status_code != httpx.codes.TOO_MANY_REQUESTS:
                break
            await asyncio.sleep(float(response.headers["Retry-After"]))
        if response.status_code != httpx.codes.ACCEPTED:
            self.wrong.append(f"{source} gave {response.status_code}: {response.text[:300]}")
            return
        sent = Sent(thread, source, value, response.json()["job_id"])
        self.sent.append(sent)
        self.follow(self._follow(sent))

    async def _follow(self, sent: Sent) -> None:
        """Wait for the answer, as a person would; what it says is read in the database at the end."""
        while True:
            response = await self._client.ask("GET", f"/messages/status/{sent.job}", params={"wait": WAIT_SECONDS})
            if response.status_code == httpx.codes.OK:
                return
            if response.status_code != httpx.codes.ACCEPTED:
                self.wrong.append(f"{sent.source_id} came to {response.status_code}: {response.text[:300]}")
                return
