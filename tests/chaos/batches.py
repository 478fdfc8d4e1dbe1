"""Batches beside the jobs: one file after the other, each sent, followed and read whatever strikes.

Every line asks for one call with a number of its own. In the end each custom id must stand in the results once, with
an answer that tells its number.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from random import Random
from typing import Any

import httpx

from tests.chaos.client import Client
from tests.chaos.following import Following

LINES = 40
_ENDED = frozenset({"completed", "failed", "cancelled"})
_PAUSE_SECONDS = 1.0


class Batches(Following):
    """Sends batches over all APIs, in the way in which `client` submits jobs; `lines` counts what was taken."""

    def __init__(self, client: Client, *, run: str) -> None:
        """`run` makes the idempotency keys and custom ids unique."""
        super().__init__()
        self._client = client
        self._run = run
        self.lines = 0
        self.wrong: list[str] = []
        self.unfinished: set[str] = set()

    async def stream(self, until: asyncio.Event) -> None:
        """Send one batch after the other until told to stop; the last one is followed beside."""
        for number in itertools.count():
            if until.is_set():
                return
            task = self.follow(self._run_batch(f"planq-chaos-{self._run}-{number}"))
            stopped = asyncio.ensure_future(until.wait())
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()

    @property
    def defects(self) -> list[str]:
        """What is wrong with the batches, nothing when all is right."""
        return [*self.wrong, *(f"{key} has not ended" for key in sorted(self.unfinished))]

    async def _run_batch(self, key: str) -> None:
        random = Random(key)
        values = {f"{key}-{line}": random.randrange(10**8, 10**9) for line in range(LINES)}
        file = "".join(json.dumps(_line(custom_id, value, random)) + "\n" for custom_id, value in values.items())
        batch = await self._sent(key, file)
        if batch is None:
            return
        self.unfinished.add(key)
        self.lines += LINES
        while batch["status"] not in _ENDED:
            await asyncio.sleep(_PAUSE_SECONDS)
            batch = (await self._client.ask("GET", f"/batches/{batch['id']}")).json()
        if batch["status"] != "completed":
            self.wrong.append(f"{key} is {batch['status']}: {batch['error']}")
        self.wrong += [f"{key}: {defect}" for defect in _defects(values, await self._results(batch["id"]))]
        self.unfinished.discard(key)

    async def _sent(self, key: str, file: str) -> dict[str, Any] | None:
        """Send a file again and again until it is taken; a process may have died while it stored the last one."""
        headers = {"Content-Type": "application/jsonl", "Idempotency-Key": key}
        while True:
            response = await self._client.ask("POST", "/batches", content=file, headers=headers)
            if response.status_code == httpx.codes.ACCEPTED:
                batch: dict[str, Any] = response.json()
                return batch
            if response.status_code != httpx.codes.CONFLICT:
                self.wrong.append(f"{key} gave {response.status_code}: {response.text[:300]}")
                return None
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _results(self, batch_id: str) -> list[dict[str, Any]]:
        """Return the results; an answer that breaks off is asked for again, as a whole."""
        while True:
            response = await self._client.ask("GET", f"/batches/{batch_id}/results")
            try:
                return [json.loads(line) for line in response.text.splitlines()]
            except ValueError:
                self._client.trouble["torn results"] += 1


def _line(custom_id: str, value: int, random: Random) -> dict[str, Any]:
    arguments = {"value": value, "seconds": round(random.uniform(0, 2), 2)}
    body = {"input": f"call chaos_put with {json.dumps(arguments)}", "model": "offline"}
    return {"custom_id": custom_id, "body": body}


def _defects(values: dict[str, int], results: list[dict[str, Any]]) -> list[str]:
    counts = Counter(result["custom_id"] for result in results)
    found = [f"{custom_id} stands {counts[custom_id]} times" for custom_id in values if counts[custom_id] != 1]
    found += [f"nobody sent {custom_id}" for custom_id in counts if custom_id not in values]
    for result in results:
        answer = ((result["response"] or {}).get("body") or {}).get("answer") or ""
        if str(values.get(result["custom_id"])) not in answer:
            found.append(f"{result['custom_id']} came to {str(result)[:300]}")
    return found
