"""The load: a steady stream of jobs over all APIs, each followed to its end.

Every request is repeated until an API takes it, with an `Idempotency-Key` where it submits, so that this client never
makes a job twice; whatever is there twice in the end is planq's doing.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.chaos import ledger
from tests.chaos.blob import shrunk
from tests.chaos.following import Following
from tests.chaos.recipes import ASKING, Recipe
from tests.chaos.verdict import Ended

WAIT_SECONDS = 20
ASKED_WAIT_SECONDS = 2
"""Where questions may come: a waiting request is answered at the end of its job, not when that asks."""

_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 2.0
TERMINAL = frozenset({"completed", "failed", "cancelled"})


class Client(Following):
    """Submits and follows jobs; `ended`, `refused` and `unfinished` tell what became of them."""

    def __init__(self, urls: Sequence[str], ledger_path: Path, *, run: str, most_in_flight: int) -> None:
        """`run` makes the idempotency keys unique; at most `most_in_flight` jobs are unfinished at a time."""
        super().__init__()
        self._ledger = ledger_path
        self._urls = itertools.cycle(urls)
        self._run = run
        self._slots = asyncio.Semaphore(most_in_flight)
        limits = httpx.Limits(max_connections=2 * most_in_flight, max_keepalive_connections=50)
        timeout = httpx.Timeout(WAIT_SECONDS + 10, connect=3)
        self._http = httpx.AsyncClient(limits=limits, timeout=timeout)
        self.accepted: dict[str, Recipe] = {}
        self.ended: dict[str, Ended] = {}
        self.seconds: list[float] = []
        self.submitted = 0
        self.refused: list[str] = []
        self.trouble: Counter[str] = Counter()

    async def stream(self, jobs: Iterator[Recipe], *, per_second: float, until: asyncio.Event) -> None:
        """Submit jobs at a steady pace until told to stop; a backlog slows it down."""
        due = time.monotonic()
        while not until.is_set():
            await self._slots.acquire()
            self._follow(next(jobs))
            due = max(due + 1 / per_second, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def close(self) -> None:
        """Give up what is still followed, and close the connections."""
        await super().close()
        await self._http.aclose()

    @property
    def unfinished(self) -> list[str]:
        """The jobs that were taken and have not ended, as far as this client knows."""
        return sorted(set(self.accepted) - set(self.ended))

    def _follow(self, recipe: Recipe) -> None:
        self.follow(self._run_job(recipe)).add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.refused.append(repr(error))

    async def _run_job(self, recipe: Recipe) -> None:
        begun = time.monotonic()
        self.submitted += 1
        key = f"planq-chaos-{self._run}-{recipe.number}"
        response = await self.ask("POST", "/jobs", json=recipe.body, headers={"Idempotency-Key": key})
        if response.status_code != httpx.codes.ACCEPTED:
            self.refused.append(f"POST /jobs ({recipe.kind}) gave {response.status_code}: {response.text[:300]}")
            return
        job: str = response.json()["id"]
        self.accepted[job] = recipe
        cancelled = await self._act(recipe, job)
        wait = ASKED_WAIT_SECONDS if recipe.kind in ASKING else WAIT_SECONDS
        while True:
            response = await self.ask("GET", f"/jobs/{job}", params={"wait": wait})
            if response.status_code != httpx.codes.OK:
                self.refused.append(f"GET /jobs/{job} gave {response.status_code}: {response.text[:300]}")
                return
            document = response.json()
            if document["status"] == "input_required":
                await self._answer(document)
            if document["status"] in TERMINAL:
                await self._fetch_outputs(document)
                self.ended[job] = Ended(recipe, document, cancelled)
                self.seconds.append(time.monotonic() - begun)
                return

    async def _answer(self, document: dict[str, Any]) -> None:
        """Approve of calls that ask for it, and say of others whether they have happened, as the ledger has it."""
        for step in document["steps"]:
            if step["question"] is None:
                continue
            self.trouble["question"] += 1
            if step["question"]["kind"] == "approval":
                await self._approve(step["question"]["id"])
                continue
            key = step["question"]["details"]["idempotency_key"]
            output = {"value": step["arguments"]["value"]}
            happened = {"outcome": "happened", "output": output}
            body = happened if ledger.has_entered(self._ledger, key, ledger.EFFECT) else {"outcome": "did_not_happen"}
            await self._order(document["id"], f"steps/{step['index']}/settle", body)

    async def _approve(self, question: str) -> None:
        """Approve of a call; by now the question may be closed (409)."""
        response = await self.ask("POST", f"/elicitations/{question}", json={"action": "accept", "content": {}})
        if response.status_code not in (httpx.codes.OK, httpx.codes.CONFLICT):
            self.refused.append(f"approval {question} gave {response.status_code}: {response.text[:300]}")

    async def _fetch_outputs(self, document: dict[str, Any]) -> None:
        """Put the large outputs where the small ones are, and keep of either kind what the verdict needs."""
        for step in document["steps"]:
            reference = step.get("output_ref")
            if reference is not None:
                response = await self.ask("GET", reference["href"])
                found = hashlib.sha256(response.content).hexdigest()
                if found != reference["sha256"] or len(response.content) != reference["bytes"]:
                    self.refused.append(
                        f"GET {reference['href']} gave {len(response.content)} bytes, SHA-256 {found}"
                    )
                step["output"] = response.json()
            step["output"] = shrunk(step["output"])
            # What came in by reference comes out in the arguments: a megabyte for each job.
            step.pop("arguments")

    async def _act(self, recipe: Recipe, job: str) -> bool:
        """Do what the recipe asks for; returns whether the job was cancelled."""
        if recipe.action is None:
            return False
        await asyncio.sleep(recipe.after)
        if recipe.action == "cancel":
            return (await self._order(job, "cancel")).status_code == httpx.codes.OK
        if (await self._order(job, "pause")).status_code == httpx.codes.OK:
            await asyncio.sleep(recipe.quiet)
            await self._order(job, "resume")
        return False

    async def _order(self, job: str, action: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Send an order that a job which has already ended may refuse (409)."""
        response = await self.ask("POST", f"/jobs/{job}/{action}", json=body)
        if response.status_code not in (httpx.codes.OK, httpx.codes.CONFLICT):
            self.refused.append(f"{action} of {job} gave {response.status_code}: {response.text[:300]}")
        return response

    async def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Ask one API after the other until one answers with something else than 503."""
        while True:
            pause = _PAUSE_SECONDS
            try:
                response = await self._http.request(method, f"{next(self._urls)}{path}", **request)
            except httpx.TransportError as error:
                self.trouble[type(error).__name__] += 1
            else:
                if response.status_code < 500:
                    return response
                self.trouble[str(response.status_code)] += 1
                if response.status_code != httpx.codes.SERVICE_UNAVAILABLE or "Retry-After" not in response.headers:
                    self.refused.append(f"{method} {path} gave {response.status_code}: {response.text[:300]}")
                pause = min(float(response.headers.get("Retry-After", pause)), _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)
