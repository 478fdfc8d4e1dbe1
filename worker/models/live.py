"""The live text of models, for people who follow a job.

A process keeps the text of each running stage call. Periodically it queries which of the jobs are followed, and
writes only their new text, in one statement. Each try of a model is an epoch, so a repeated call never shows a text
twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from itertools import count
from uuid import UUID

from planq.shared.agentic.models.exchange import Ask, StageAttempt
from planq.shared.agentic.plan.speech import Speech, SpeechForm
from planq.shared.platform.errors import DatabaseUnavailable
from planq.shared.subjects.streams.contract import Epoch, TextPiece
from planq.shared.subjects.streams.store import PostgresTexts

_log = logging.getLogger("planq.llm")

_EVERY_SECONDS = 0.15
"""Between two writes; people take a text that grows more often than that for a steady one."""


class LiveCall:
    """The text of one call of a stage, over all its tries."""

    def __init__(self, texts: LiveTexts, ask: Ask, stage: StageAttempt, form: SpeechForm) -> None:
        # Most is made with the first try: a call that no provider is asked for costs next to nothing.
        self._texts = texts
        self._ask = ask
        self._stage = stage
        self._form = form
        self._is_followed = False

    def try_anew(self) -> None:
        """Begin a try: what is said from now on takes the place of all that was said before."""
        self.job_id = UUID(self._ask.job_id)
        self._begin_epoch(Speech(self._form))
        self._texts.keep(self)

    def begin(self, part: int, tool_name: str | None = None) -> None:
        self._speech.begin(part, tool_name)

    def add(self, part: int, piece: str) -> None:
        self._speech.add(part, piece)

    async def end(self) -> None:
        """Let those who follow the job have all of the text before its answer is committed."""
        self._texts.discard(self)
        if self._is_followed:
            await self._texts.write([self])

    def drop(self) -> None:
        self._texts.discard(self)

    def look(self, followed: Collection[UUID]) -> bool:
        """Take note of whether the job is among those that somebody follows, and return it."""
        self._is_followed = self.job_id in followed
        return self._is_followed

    def unwritten(self) -> TextPiece | None:
        if self._speech.version != self._version:
            self._begin_epoch(self._speech)
        piece = self._speech.text[self._written :]
        if not piece:
            return None
        return TextPiece(self._epoch, self._ask.tenant_id, str(self._stage.status), self._written, piece)

    def note(self, epoch: Epoch, written: int) -> None:
        if epoch == self._epoch:
            self._written = written

    def _begin_epoch(self, speech: Speech) -> None:
        self._speech, self._version, self._written = speech, speech.version, 0
        self._epoch: Epoch = Epoch(self.job_id, self._stage.attempt, next(self._texts.numbers))


class LiveTexts:
    """The texts of one process's calls, and their writer; lives on one event loop."""

    def __init__(self, sink: PostgresTexts, every_seconds: float = _EVERY_SECONDS) -> None:
        self._sink = sink
        self._every_seconds = every_seconds
        self.numbers = count(1)
        self._calls: set[LiveCall] = set()
        self._one_at_a_time = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None

    def keep(self, call: LiveCall) -> None:
        self._calls.add(call)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_for_ever())

    def discard(self, call: LiveCall) -> None:
        self._calls.discard(call)

    async def write(self, calls: Sequence[LiveCall]) -> None:
        """Write the new text of these calls; a failure does not stop the work."""
        async with self._one_at_a_time:
            unwritten = [(call, piece) for call in calls if (piece := call.unwritten()) is not None]
            if not unwritten:
                return
            try:
                there = await self._sink.write([piece for _, piece in unwritten])
            except Exception as error:
                _not_written(error)
                return
            for call, piece in unwritten:
                # A text that a newer one has replaced is shown no more.
                call.note(piece.epoch, there.get(piece.epoch, piece.start + len(piece.text)))

    def call(self, ask: Ask, form: SpeechForm | None) -> LiveCall | None:
        """Return the text of a call that is about to be made; None of one that is no stage's, or for no people."""
        return None if ask.stage is None or form is None else LiveCall(self, ask, ask.stage, form)

    async def aclose(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every_seconds)
            if not self._calls:
                return
            try:
                calls = list(self._calls)
                followed = await self._sink.followed([call.job_id for call in calls])
                await self.write([call for call in calls if call.look(followed)])
            except Exception as error:
                _not_written(error)


def _not_written(error: Exception) -> None:
    if isinstance(error, DatabaseUnavailable):
        _log.warning("texts_not_written", extra={"cause": error.message})
    else:
        _log.error("texts_not_written", exc_info=error)
