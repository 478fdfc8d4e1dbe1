"""One call of a tool on its way to the answer: its time, its tenant's secrets, what it reports, how it is counted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from planq.shared.agentic.tools.contract import BytesArtifact, RichOutput, Suspended
from planq.shared.agentic.tools.definition import LATENCIES_SECONDS
from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.questions import QuestionAnswer, StepQuestion
from planq.shared.kernel.retry import Phase
from planq.shared.platform.errors import (
    AuthFailed,
    DatabaseUnavailable,
    ExecutionFailed,
    InternalFault,
    Misconfigured,
    PlanqError,
    TimedOut,
    capped,
)
from planq.shared.platform.redact import without
from planq.shared.platform.values.decoding import decode
from planq.shared.subjects.tenants.secrecy import texts_in
from planq.worker.engine.lease import Owner
from planq.worker.engine.persist import persist

_ABANDON_SECONDS = 2.0
"""How long a cancelled tool may take to clean up before its step goes on without it."""


_MOST_TOOLS = 200
"""So many tools are counted by their names in one process, however many its servers offer in the course of time."""


class Calling:
    """One attempt on its way to the tool's answer; `phase` says how far it has come.

    `is_abandoned`: a tool that was cancelled at its timeout. It may still run. `seconds` is what it gets. It takes
    the reports of its tool (`agentic.tools.contract.Reports`), for which `begin_progress` is called once.
    """

    __slots__ = (
        "_asked_at",
        "_claim",
        "_done_or_timeout",
        "_is_prolonged",
        "_loop",
        "_timer",
        "begin_progress",
        "is_abandoned",
        "owner",
        "phase",
        "progress",
        "seconds",
        "secrets",
    )

    def __init__(self, claim: StepClaim, owner: Owner, secrets: CallSecrets) -> None:
        """Call it on the event loop. Once nobody waits for the call, its `owner` learns that it is over."""
        self._claim = claim
        self.owner = owner
        self.secrets = secrets
        self._loop = asyncio.get_running_loop()
        self._done_or_timeout: asyncio.Future[None] = self._loop.create_future()
        self.begin_progress: Callable[[], CallProgress] | None = None
        self.progress: CallProgress | None = None
        self.phase = Phase.PREPARING
        self.is_abandoned = False
        self.seconds = claim.timeout_seconds
        self._asked_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_prolonged = False

    def count(self, counts: Counter[tuple[str, ...]], outcome: str) -> None:
        """Count a call of the tool that came to `outcome`, and how long it took; nothing where there was none.

        Keys: `tool_call` by tool and outcome, `tool_seconds` by tool and the bucket that it falls into, the sum of
        `tool_ms` by tool.
        """
        if self._asked_at is None or self.phase not in (Phase.CALLING, Phase.GATHERED):
            return
        seconds, tool = monotonic() - self._asked_at, self._claim.tool_name
        if ("tool_ms", tool) not in counts and sum(name == "tool_ms" for name, *_ in counts) >= _MOST_TOOLS:
            tool = "other"
        bucket = next((str(bound) for bound in LATENCIES_SECONDS if seconds <= bound), "+Inf")
        counts["tool_call", tool, outcome] += 1
        counts["tool_seconds", tool, bucket] += 1
        counts["tool_ms", tool] += round(seconds * 1000)

    async def answer(self, attempt: Coroutine[Any, Any, Any]) -> Any:
        """Return what `attempt` returns, which asks the tool within `with calling`; raises what it raises.

        Raises `TimedOut` when the tool does not answer in time. When the caller is cancelled, so is the attempt.
        """
        task = asyncio.create_task(attempt)
        task.add_done_callback(self._wake)
        try:
            await self._done_or_timeout
        except asyncio.CancelledError:
            self.owner.is_over = True
            await _abandon(task)
            raise
        self.owner.is_over = True
        if task.cancelled():
            # Not from here: passed on, it would look like this process stopping, and be repeated for ever.
            raise InternalFault(f"tool {self._claim.tool_name!r} cancelled itself")
        if task.done():
            try:
                return task.result()
            finally:
                del task  # what it raised refers to this frame: left here, only the garbage collector would free both
        self.is_abandoned = True
        await _abandon(task)
        raise TimedOut(f"tool {self._claim.tool_name!r} did not {self._waited_for}")

    def __enter__(self) -> None:
        """The tool is asked within this block, and its time runs; only in the attempt that `answer` awaits."""
        self._asked_at = monotonic()
        self._timer = self._loop.call_later(self.seconds, self._wake)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.progress is not None:  # nothing more is written of what the tool reports
            self.progress.close()
        self.begin_progress = self.progress = None  # which refer to this call: only the collector would free them

    def prolong(self, seconds: float) -> None:
        """Let the call go on for so many seconds from now: it has reported."""
        if self._timer is not None and not self._timer.cancelled():
            self._timer.cancel()
            self._timer = self._loop.call_later(seconds, self._wake)
            self.owner.prolong(seconds)
            self._is_prolonged = True

    def report(self, done: float | None, message: str) -> None:
        """Take a report of the tool, which nobody hears once the call is over."""
        if self.progress is None:
            if self.begin_progress is None:  # nobody waits for the call any more
                return
            self.progress = self.begin_progress()
        self.progress.report(done, message)

    def report_from_thread(self, done: float | None, message: str) -> None:
        asyncio.run_coroutine_threadsafe(self._report(done, message), self._loop).result()

    async def _report(self, done: float | None, message: str) -> None:
        self.report(done, message)

    @property
    def _waited_for(self) -> str:
        if self._is_prolonged:
            took = 0.0 if self._asked_at is None else monotonic() - self._asked_at
            return f"report within {self._claim.timeout_seconds:g} s, or end in time: it ran for {took:.0f} s"
        return f"answer within {self.seconds:g} s"

    def _wake(self, _: object = None) -> None:
        if not self._done_or_timeout.done():
            self._done_or_timeout.set_result(None)


async def _abandon(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=_ABANDON_SECONDS)
    if task.done() and not task.cancelled():
        task.exception()  # seen, so that asyncio does not report it as never retrieved


SecretsOf = Callable[[str, str], Awaitable[str | None]]
"""Returns the secret of a tenant under a name, None for none; raises `Misconfigured` where it cannot be opened."""


async def no_secrets(tenant_id: str, name: str) -> str | None:
    """Return None: nobody has any (`SecretsOf`)."""
    return None


class CallSecrets:
    """The secrets of one call's tenant (`agentic.tools.contract.KeepsSecrets`); make it on the event loop.

    It remembers those that it has given, and hides them in what the call comes to.
    """

    def __init__(self, tenant_id: str, secrets: SecretsOf) -> None:
        self._tenant_id = tenant_id
        self._secrets = secrets
        self.given: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def get(self, name: str) -> str | None:
        """Return a secret, as soon as the database answers; raises `AuthFailed` for one that cannot be opened."""
        text = None if "/" in name else await self._open(name)
        if text is not None:
            self.given.add(text)
        return text

    async def opened(self, answers: Sequence[QuestionAnswer]) -> Sequence[QuestionAnswer]:
        """Return the answers of the step with their secret fields; raises `AuthFailed` where these do not open."""
        found: list[QuestionAnswer] = []
        for answer in answers:
            if answer.sealed_as is not None:
                text = await self._open(answer.sealed_as)
                if text is None:
                    raise AuthFailed(
                        "the secret that a person gave for this step is erased; resume the job to ask again"
                    )
                secret = decode(text)
                self.given.update(texts_in(secret))
                answer = replace(answer, content={**answer.content, **secret})
            found.append(answer)
        return found

    async def _open(self, name: str) -> str | None:
        try:
            return await persist(self._secrets, self._tenant_id, name)
        except Misconfigured as error:
            raise AuthFailed(error.message) from error

    def get_from_thread(self, name: str) -> str | None:
        if threading.get_ident() == self._thread:
            raise RuntimeError("secret_sync() stands on the event loop, which it would block: await secret()")
        return asyncio.run_coroutine_threadsafe(self.get(name), self._loop).result()

    def hidden_in(self, answer: Any) -> Any:
        """Return what a tool answered without what it was given."""
        if not self.given:
            return answer
        match answer:
            case Suspended(output=output):
                return replace(answer, output=self.hidden_in(output))
            case RichOutput(output, artifacts, content):
                hidden = self.hidden_in(output), self.hidden_in([*artifacts]), self.hidden_in(content)
                return RichOutput(*hidden, answer.cost_usd)
            case BytesArtifact(data=data):
                for text in self.given:
                    data = data.replace(text.encode(), "…".encode())
                return replace(answer, data=data)
            case str() | dict():
                return without(answer, self.given)
            case list() if any(isinstance(one, BytesArtifact) for one in answer):
                return [self.hidden_in(one) for one in answer]
            case list():
                return without(answer, self.given)
        return answer

    def hide_in_error(self, error: PlanqError) -> None:
        """Take what was given out of what an error says."""
        if self.given:
            error.message = without(error.message, self.given)
            error.details = without(error.details, self.given)
            if isinstance(error, ExecutionFailed):
                error.traceback = without(error.traceback, self.given)

    def hidden_in_question(self, question: StepQuestion) -> StepQuestion:
        """Return a question without what was given."""
        if not self.given:
            return question
        shown = {
            name: without(getattr(question, name), self.given) for name in ("message", "schema", "url", "default")
        }
        return replace(question, **shown)


_MOST_CHARS = 500

_PAUSE_SECONDS = 1.0
_PAUSE_SHARE = 0.01
"""Of the time that the call has run: an hour has some 500 events, a day some 800."""

Write = Callable[[float | None, str, float | None], Awaitable[bool]]
"""Keeps what is done and the message, and gives so many seconds more; see `JobStore.report_progress`."""


class CallProgress:
    """The reports of one call (`Calling.report`); belongs to the event loop on which it is made.

    A report counts here at once. It is written at most once a second, less often the longer the call runs, and in
    time for what the database gives the step.

    A report gives the call `seconds` more, and `prolong` is called with that, where it may take `longest` seconds in
    all; None: a report gives no time.
    """

    def __init__(
        self,
        write: Write,
        prolong: Callable[[float], None],
        *,
        seconds: float,
        longest: float | None,
        began: float | None = None,
        hide: Callable[[str], str] = str,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`hide` takes out of a message what nobody may read; `clock` counts seconds, `sleep` lets some pass.

        `began` is when the call did, None for now.
        """
        self._write = write
        self._prolong = prolong
        self._seconds = seconds
        self._longest = longest
        self._hide = hide
        self._clock = clock
        self._sleep = sleep
        self._loop = asyncio.get_running_loop()
        self._began = clock() if began is None else began
        self._written_at = self._given_at = float("-inf")
        self._latest: tuple[float | None, str] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_over = False

    def report(self, done: float | None, message: str) -> None:
        """Take a report; raises `ValueError` where `done` is no part of the whole."""
        if done is not None and not 0 <= done <= 1:
            raise ValueError(f"progress: expected a part from 0 to 1, or None, found {done!r}")
        if self._is_over:  # a thread that nobody waits for any more
            return
        self._latest = done, capped(self._hide(message), _MOST_CHARS)
        if self._longest is not None and (left := self._left(self._seconds)) > 0:
            self._prolong(left)
        if self._writing is None or self._writing.done():
            self._writing = self._loop.create_task(self._write_latest())

    def close(self) -> None:
        self._is_over = True
        if self._writing is not None:
            self._writing.cancel()

    def _left(self, seconds: float) -> float:
        return min(seconds, self._began + (self._longest or 0.0) - self._clock())

    async def _write_latest(self) -> None:
        while self._latest is not None:
            now = self._clock()
            is_worth_time = self._longest is not None and now - self._given_at >= self._seconds / 3
            pause = max(_PAUSE_SECONDS, _PAUSE_SHARE * (now - self._began))
            if not is_worth_time and (wait := self._written_at + pause - now) > 0:
                await self._sleep(min(wait, self._seconds / 3))
                continue
            (done, message), self._latest = self._latest, None
            # Beyond what counts here, so that the database never ends a call that this process lets go on.
            more = self._left(self._seconds * 4 / 3) if is_worth_time else None
            with contextlib.suppress(DatabaseUnavailable):  # the next report is written, or the lease is over
                await self._write(done, message, more)
                self._written_at = self._clock()
                self._given_at = now if is_worth_time else self._given_at
