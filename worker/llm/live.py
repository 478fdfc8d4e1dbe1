"""What models are saying, for those who follow a job while it runs.

A process keeps the text of each call of a stage as long as the call runs. Every moment one statement takes what is
new of the texts whose jobs somebody follows, for all calls together, and says which those are; nobody else's text
leaves the process. While no model streams, nothing is asked.

A try of a model is an epoch of its own, so a call that is made again, here or by another worker, never shows a text
twice. The tries of a process are counted over all its calls: an attempt at a stage belongs to one process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count
from uuid import UUID

from shared.domain.errors import DatabaseUnavailable
from shared.domain.models.exchange import Ask, StageAttempt
from shared.domain.models.speech import Speech, SpeechForm
from shared.ports.streams import Epoch, TextPiece, TextSink

_log = logging.getLogger("planq.llm")

_EVERY_SECONDS = 0.15
"""Between two writes; people take a text that grows more often than that for a steady one."""


class LiveCall:
    """The text of one call of a stage, over all its tries."""

    def __init__(self, texts: LiveTexts, ask: Ask, stage: StageAttempt, form: SpeechForm) -> None:
        """`ask` is that of the `stage`; its job is the one that people follow."""
        self._texts = texts
        self._job_id = UUID(ask.job_id)
        self._tenant_id = ask.tenant_id
        self._stage = stage
        self._form = form
        self._written: int | None = None
        self._begin_epoch(Speech(form))

    def try_anew(self) -> None:
        """Begin a try: what is said from now on takes the place of all that was said before."""
        self._begin_epoch(Speech(self._form))
        self._texts.keep(self)

    def begin(self, part: int, tool_name: str | None = None) -> None:
        """Take note of a part of the reply, as `Speech.begin`."""
        self._speech.begin(part, tool_name)

    def add(self, part: int, piece: str) -> None:
        """Take a piece of a part, as `Speech.add`."""
        self._speech.add(part, piece)

    async def end(self) -> None:
        """Let those who follow the job have all of the text before its answer is committed."""
        self._texts.discard(self)
        if self._written is not None:
            await self._texts.write([self])

    def drop(self) -> None:
        """Keep nothing more of a call that has failed, or was cut off; idempotent."""
        self._texts.discard(self)

    def unwritten(self) -> TextPiece | None:
        """Return what is to be written: of a text that nobody followed so far an empty piece, None without a text."""
        if self._speech.version != self._version:
            self._begin_epoch(self._speech)
        text = self._speech.text
        if not text:
            return None
        start = self._written or 0
        return TextPiece(
            self._epoch,
            self._tenant_id,
            str(self._stage.status),
            start,
            "" if self._written is None else text[start:],
        )

    def note(self, epoch: Epoch, written: int | None) -> None:
        """Take note of how much of an epoch's text is there, None where nobody follows."""
        if epoch == self._epoch:
            self._written = written

    def _begin_epoch(self, speech: Speech) -> None:
        self._speech, self._version = speech, speech.version
        self._epoch = Epoch(self._job_id, self._stage.attempt, self._texts.next_number())
        # Whoever follows goes on to do so: the first piece need not wait for one more answer.
        self._written = None if self._written is None else 0


class LiveTexts:
    """The texts of one process's calls, and their writer; lives on one event loop."""

    def __init__(self, sink: TextSink, every_seconds: float = _EVERY_SECONDS) -> None:
        self._sink = sink
        self._every_seconds = every_seconds
        self._numbers = count(1)
        self._calls: set[LiveCall] = set()
        self._one_at_a_time = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None

    def next_number(self) -> int:
        """Return the number of a new try."""
        return next(self._numbers)

    def keep(self, call: LiveCall) -> None:
        """Write what a call says, from now on."""
        self._calls.add(call)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_for_ever())

    def discard(self, call: LiveCall) -> None:
        """Write nothing more of a call."""
        self._calls.discard(call)

    async def write(self, calls: Sequence[LiveCall]) -> None:
        """Write what is new of these calls, for those who follow; nothing where the database does not answer."""
        async with self._one_at_a_time:
            told = [(call, piece) for call in calls if (piece := call.unwritten()) is not None]
            if not told:
                return
            try:
                there = await self._sink.write([piece for _, piece in told])
            except DatabaseUnavailable as error:
                _log.warning("texts_not_written", extra={"cause": error.message})
                return
            for call, piece in told:
                call.note(piece.epoch, there.get(piece.epoch))

    def call(self, ask: Ask, form: SpeechForm | None) -> LiveCall | None:
        """Return the text of a call that is about to be made; None of one that is no stage's, or for no people."""
        return None if ask.stage is None or form is None else LiveCall(self, ask, ask.stage, form)

    async def aclose(self) -> None:
        """Stop writing; idempotent."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every_seconds)
            if not self._calls:
                return
            try:
                await self.write(list(self._calls))
            except Exception:
                # What a model says is shown beside the work, which goes on.
                _log.exception("texts_not_written")
