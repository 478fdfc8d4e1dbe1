"""Messages that are no wake-ups, kept at the broker with the reason, in a bounded list (RabbitMQ: a queue).

None of them is needed: the sweeper publishes missing wake-ups again.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from kombu import Connection, Producer

from planq.shared.broker import names
from planq.shared.broker.depth import message_count, open_once, patient_connection, reply_of
from planq.shared.broker.transport import LONGEST_CHARS, Channel

_log = logging.getLogger("planq.broker")

MOST_LETTERS = 1_000
"""Maximum letters, each with at most `LONGEST_CHARS`: some megabytes. The oldest are dropped."""

_PATIENCE_SECONDS = 5.0
_REASON_CHARS = 500

_MOST_WAITING = MOST_LETTERS
"""Maximum letters that wait in a worker for the broker; more are only counted."""

_LENGTH = {"x-max-length": MOST_LETTERS, "x-overflow": "drop-head"}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was no wake-up: when (ISO 8601, UTC), from which queue, why, and its beginning."""

    at: str
    queue: str
    reason: str
    message: str

    @classmethod
    def of(cls, queue: str, message: Any, reason: str) -> DeadLetter:
        kept = message[:LONGEST_CHARS] if isinstance(message, (bytes, bytearray, str)) else message
        text = kept.decode("utf-8", "replace") if isinstance(kept, (bytes, bytearray)) else str(kept)
        return cls(datetime.now(UTC).isoformat(), queue, reason[:_REASON_CHARS], text[:LONGEST_CHARS])

    @classmethod
    def read(cls, text: str | bytes) -> DeadLetter:
        """Return a stored letter; an entry of another program says so."""
        try:
            document = json.loads(text)
            return cls(**{field.name: str(document[field.name]) for field in fields(cls)})
        except (ValueError, TypeError, KeyError, RecursionError):
            shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
            return cls("", names.DEAD_LETTERS, "not written by planq", shown[:LONGEST_CHARS])


class DeadLetters:
    """The list over an own connection, for one thread. Each call raises what the broker's client raises."""

    def __init__(self, app: Celery) -> None:
        """Raises `Misconfigured` if the broker's URL cannot be read."""
        self._connection: Connection = patient_connection(app, _PATIENCE_SECONDS)

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Append letters; the oldest ones above `MOST_LETTERS` are dropped."""
        texts = [json.dumps(asdict(letter)) for letter in letters[-MOST_LETTERS:]]
        with self._opened() as channel:
            if isinstance(channel, Channel):
                with channel.conn_or_acquire() as client, client.pipeline() as pipe:
                    pipe.lpush(names.DEAD_LETTERS, *texts).ltrim(names.DEAD_LETTERS, 0, MOST_LETTERS - 1).execute()
                return
            self._declare(channel)
            producer = Producer(channel, routing_key=names.DEAD_LETTERS, auto_declare=False)
            for text in texts:
                producer.publish(
                    text,
                    content_type="application/json",
                    content_encoding="utf-8",
                    delivery_mode=2,
                    confirm_timeout=_PATIENCE_SECONDS,
                )

    def list(self, limit: int) -> list[DeadLetter]:
        """Return the newest letters, newest first, without removing them."""
        with self._opened() as channel:
            if isinstance(channel, Channel):
                with channel.conn_or_acquire() as client:
                    return [DeadLetter.read(text) for text in client.lrange(names.DEAD_LETTERS, 0, limit - 1)]
            self._declare(channel)
            found: list[DeadLetter] = []
            # Not acknowledged: they go back to their places when the channel is closed.
            while len(found) < MOST_LETTERS and (message := channel.basic_get(names.DEAD_LETTERS)) is not None:
                found.append(DeadLetter.read(message.body))
            return found[: -limit - 1 : -1]

    def count(self) -> int:
        with self._opened() as channel:
            return message_count(self._connection, channel, names.DEAD_LETTERS) or 0

    def drop(self) -> int:
        """Remove all letters; returns the count."""
        with self._opened() as channel:
            if not isinstance(channel, Channel):
                self._declare(channel)
            return int(channel.queue_purge(names.DEAD_LETTERS) or 0)

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        self._connection.collect()

    def _opened(self) -> Any:
        open_once(self._connection, _PATIENCE_SECONDS)
        return self._connection.channel()

    def _declare(self, channel: Any) -> None:
        channel.queue_declare(names.DEAD_LETTERS, durable=True, auto_delete=False, arguments=_LENGTH)


class DeadLetterWriter:
    """Writes letters from a thread, which the first one starts; the consumer never waits for the broker."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._inbox: queue.Queue[DeadLetter] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self.counts = Counter[tuple[str, ...]]()
        """How many messages were no wake-ups since the start, as a heartbeat reports it."""

    def put(self, queue_name: str, message: Any, reason: str) -> None:
        """Count a message and store it with the reason; call it from one thread."""
        self.counts["dead_letter",] += 1
        try:
            self._inbox.put_nowait(DeadLetter.of(queue_name, message, reason))
        except queue.Full:
            return  # the list would not keep it either
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="planq-dead-letters", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        dead_letters = DeadLetters(self._app)
        while True:
            letters = [self._inbox.get()]
            while not self._inbox.empty():
                letters.append(self._inbox.get())
            last = letters[-1]
            _log.error(
                "messages_unreadable", extra={"count": len(letters), "queue": last.queue, "cause": last.reason}
            )
            try:
                dead_letters.add(letters)
            except Exception as error:  # every client library has errors of its own here; all mean "not kept"
                cause = reply_of(error) or repr(error)
                _log.warning("dead_letters_not_kept", extra={"count": len(letters), "cause": cause})
                dead_letters.close()
