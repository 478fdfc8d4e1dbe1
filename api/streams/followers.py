"""Streams of server-sent events: one query serves all who follow something through this process.

While anybody follows, the hub queries every fifth of a second for the events and texts that are followed, makes a
frame (WHATWG HTML, section 9.2) of each once, and puts it into the streams. Workers send no notification of events,
so an event costs them the same with and without readers, and a query costs one probe of an index.

A stream joins between two queries. It reads by itself what was written up to then (`Stream.joined`), and gets later
events from the hub: nothing is missed, and nothing comes twice. A frame with an `id` is an event of the log, so that
a client can reconnect with the last one it has seen. All other frames have no id, and are made again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from enum import Enum
from time import monotonic
from typing import NamedTuple
from uuid import UUID

import orjson

from planq.api.http.exchange import RETRY_AFTER_SECONDS, HttpRefusal, on_one_line
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import TERMINAL_JOB
from planq.shared.platform.database import shown_time
from planq.shared.platform.errors import DatabaseUnavailable, NotFound
from planq.shared.platform.timers import every
from planq.shared.subjects.events.position import BEGINNING, Position
from planq.shared.subjects.events.store import HELD_SECONDS, EventLog, FreshEvents, LoggedEvent, LogHorizon
from planq.shared.subjects.streams.contract import TextPiece
from planq.shared.subjects.streams.followers import StreamStore

MEDIA_TYPE = "text/event-stream"

HEARTBEAT = b":\n\n"
"""A comment that keeps the connection through proxies, and detects a client that has gone."""


HELD_BACK = b": held back by an open transaction in the database server; events come once it has ended\n\n"
"""A comment that names no session: that is for operators (`planq doctor`, `planq_events_held_seconds`)."""


def retry_frame(milliseconds: int) -> bytes:
    return b"retry: %d\n\n" % milliseconds


def event_frame(event: LoggedEvent) -> bytes:
    name = " ".join(event.kind.split())
    return b"id: %b\nevent: %b\n%b" % (
        str(event.position).encode(),
        name.encode(),
        _data(orjson.dumps(event_document(event))),
    )


def event_document(event: LoggedEvent) -> dict[str, object]:
    """Return an event of the log as clients get it."""
    return {
        "job_id": event.job_id,
        "sequence": event.position.sequence,
        "kind": event.kind,
        "data": None if event.data is None else orjson.Fragment(event.data.encode()),
        "created_at": shown_time(event.created_at),
    }


def text_frame(piece: TextPiece) -> bytes:
    """Return a piece of what a model says; `offset` is how many characters of its attempt and try come before."""
    shown = {
        "job_id": piece.epoch.job_id,
        "stage": piece.stage,
        "attempt": piece.epoch.attempt,
        "try": piece.epoch.number,
        "offset": piece.start,
        "text": piece.text,
    }
    return b"event: text\n" + _data(orjson.dumps(shown))


def job_frame(document: bytes) -> bytes:
    """Return a job that has ended, as JSON that `GET /jobs/{id}` shows, too."""
    return b"event: job\n" + _data(document)


def _data(body: bytes) -> bytes:
    # Of JSON that is kept as it came, a line break is white space: in strings it is always an escape.
    return b"data: %b\n\n" % on_one_line(body.replace(b"\r", b" ").replace(b"\n", b" "))


_log = logging.getLogger("planq.api")

_LOOK_SECONDS = 0.2
_HEARTBEAT_SECONDS = 15.0
_MOST_EVENTS = 2_000
"""Events of one look; where there are more, the next look follows at once."""

_UNSENT_BYTES = 1_000_000
"""Maximum unsent data of a client that does not read; with more, its stream ends and it can reconnect."""

_CHUNK_BYTES = 64 * 1024
_READING = 4
"""Clients whose past is read concurrently; the limit leaves database connections to other requests."""

_TELLING = 32
"""Ended jobs whose documents are made concurrently."""

_JOIN_SECONDS = 10.0
_WATCH_SECONDS = 30.0
_WATCH_EVERY_SECONDS = 10.0
_ASK_EVERY_SECONDS = 5.0
_BEGINNINGS = ("job_submitted", "job_resumed")
_ENDINGS = frozenset(f"job_{status}" for status in TERMINAL_JOB)


class StreamSubject(Enum):
    """What a stream is about."""

    JOB = "a job"
    TREE = "a job with all jobs below it"
    CONVERSATION = "the turns of a conversation, with all jobs below them"
    TALK = "the same, with what is said in them"
    TENANT = "all jobs of a tenant"


_WITH_TEXTS_BELOW = (StreamSubject.TREE, StreamSubject.TALK)
_OF_CONVERSATIONS = (StreamSubject.CONVERSATION, StreamSubject.TALK)


class Topic(NamedTuple):
    """What a stream follows: a job, a job with those below it, a conversation, or a tenant."""

    followed: StreamSubject
    of: UUID | str


class Stream:
    """The frames that wait for one client.

    The request itself reads older events (up to `joined`) and texts (of transactions below `texts_below`).
    """

    __slots__ = (
        "_bytes",
        "_frames",
        "_is_ended",
        "_on_full",
        "_wake",
        "beat_at",
        "below",
        "is_cut",
        "joined",
        "root",
        "tenant_id",
        "texts_below",
        "topic",
    )

    def __init__(
        self, topic: Topic, tenant_id: str, on_full: Callable[[], None], *, root: UUID | None = None
    ) -> None:
        """`on_full` is called when the stream ends because the client does not read.

        For a tree, `root` is the outermost job, which may be above the followed one. `below` are the unfinished jobs
        below the followed job or conversation, whose texts are shown too.
        """
        self.topic = topic
        self.root = root
        self.tenant_id = tenant_id
        self.below: set[UUID] = set()
        self.joined = BEGINNING
        self.texts_below = 0
        self.is_cut = False
        self.beat_at = monotonic() + _HEARTBEAT_SECONDS
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._is_ended = False
        self._on_full = on_full
        self._wake = asyncio.Event()

    def put(self, frame: bytes) -> None:
        """Add a frame, or end the stream if too much waits for a client that does not read."""
        if self._is_ended:
            return
        if self._bytes + len(frame) > _UNSENT_BYTES and self._frames:
            self.cut()
            self._on_full()
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._wake.set()

    def beat(self) -> None:
        self.beat_at += _HEARTBEAT_SECONDS
        self.put(HEARTBEAT)

    def end(self, last: bytes) -> None:
        """End the stream with a last frame, after those that wait."""
        if not self._is_ended:
            self._frames.append(last)
            self._is_ended = True
            self._wake.set()

    def cut(self) -> None:
        """End the stream at once, without the frames that wait."""
        self._frames.clear()
        self._is_ended = self.is_cut = True
        self._wake.set()

    async def next(self) -> bytes | None:
        """Return the next frames as soon as there are some, None once the stream has ended."""
        while not self._frames:
            if self._is_ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        taken = [self._frames.popleft()]
        size = len(taken[0])
        while self._frames and size + len(self._frames[0]) <= _CHUNK_BYTES:
            taken.append(self._frames.popleft())
            size += len(taken[-1])
        self._bytes -= size
        return b"".join(taken)


class Streams:
    """The streams of a process; lives on one event loop."""

    def __init__(
        self, log: EventLog, texts: StreamStore, ended_job: Callable[[str, UUID], Awaitable[bytes | None]], most: int
    ) -> None:
        """`ended_job` returns the document of an ended job, or None; `most` streams may be open.

        If all places are taken, a tenant with fewer streams gets one of another tenant.
        """
        self._log = log
        self._texts = texts
        self._ended_job = ended_job
        self._most = most
        self.reading = asyncio.Semaphore(_READING)
        self._id = new_id()
        self._following: dict[Topic, set[Stream]] = {}
        self._count = 0
        self._of_tenants: dict[str, dict[Stream, None]] = {}
        self._joining: list[tuple[Stream, asyncio.Future[None]]] = []
        self._reached: tuple[LogHorizon, Position] | None = None
        self._ending: dict[UUID, int | None] = {}
        self._telling = asyncio.Semaphore(_TELLING)
        self._concluding: set[asyncio.Task[None]] = set()
        self._watched: set[UUID] = set()
        self._watched_until = 0.0
        self._wake = asyncio.Event()
        self._is_closed = False
        self._is_behind = False
        self._asked_at = 0.0
        self._held_by: int | None = None

    def __len__(self) -> int:
        return self._count

    async def join(self, stream: Stream, *, has_ended: bool) -> None:
        """Put later events into a stream; the client's request itself reads those up to `joined`.

        With `has_ended`, the end of the job is sent once the log is complete. Call `leave` afterwards. Raises
        `HttpRefusal` (503) for one stream too many and during a stop, and `DatabaseUnavailable`.
        """
        if self._is_closed or not self._makes_room_for(stream.tenant_id):
            reason = "it stops" if self._is_closed else f"it serves {self._most} already"
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            detail = f"this process takes no further stream: {reason}; come back in a moment"
            raise HttpRefusal(503, "too_many_streams", detail, headers=headers)
        self._count += 1
        self._of_tenants.setdefault(stream.tenant_id, {})[stream] = None
        joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._joining.append((stream, joined))
        self._wake.set()
        try:
            async with asyncio.timeout(_JOIN_SECONDS):
                await joined
        except TimeoutError:
            self.leave(stream)
            raise DatabaseUnavailable("the database does not say where the event log stands") from None
        except BaseException:
            self.leave(stream)
            raise
        if has_ended and isinstance(stream.topic.of, UUID):
            self._ending.setdefault(stream.topic.of, None)

    def leave(self, stream: Stream) -> None:
        """Forget a stream; call it once for each that has joined."""
        self._count -= 1
        self._let_go(stream)
        self._joining = [one for one in self._joining if one[0] is not stream]
        mine = self._following.get(stream.topic, set())
        mine.discard(stream)
        if not mine:
            self._following.pop(stream.topic, None)

    def show_below(self, stream: Stream, job_ids: Collection[UUID]) -> tuple[set[UUID], int]:
        """Put texts of further jobs of a tree, or of a conversation, into its stream.

        Return the jobs that are new to it, and the transaction up to which its request reads their texts itself.
        """
        new = set(job_ids) - stream.below
        stream.below |= new
        return new, stream.texts_below if self._reached is None else self._reached[0].below

    def _makes_room_for(self, tenant_id: str) -> bool:
        """Return whether a tenant may have one more stream, after ending one of another tenant if necessary.

        That is the newest one of the tenant with most streams, if it has at least two more: its client reconnects.
        """
        if sum(map(len, self._of_tenants.values())) < self._most:
            return True
        largest = max(self._of_tenants, key=lambda one: len(self._of_tenants[one]))
        if len(self._of_tenants[largest]) < len(self._of_tenants.get(tenant_id, {})) + 2:
            return False
        ended = next(reversed(self._of_tenants[largest]))
        self._let_go(ended)
        ended.cut()
        _log.warning("stream_ended_for_another_tenant", extra={"tenant": largest, "for_tenant": tenant_id})
        return True

    def _let_go(self, stream: Stream) -> None:
        mine = self._of_tenants.get(stream.tenant_id, {})
        mine.pop(stream, None)
        if not mine:
            self._of_tenants.pop(stream.tenant_id, None)

    def close(self) -> None:
        """End every stream, now and from now on: the process stops."""
        self._is_closed = True
        for stream in (*self._all(), *(one for one, _ in self._joining)):
            stream.cut()

    async def beat(self) -> None:
        """Send heartbeats; cancel to stop."""
        await every(1.0, self._beat_once, name="stream heartbeats", waits_first=True)

    async def _beat_once(self) -> None:
        now = monotonic()
        for stream in self._all():
            if stream.beat_at <= now:
                stream.beat()

    async def look(self) -> None:
        """Query for all streams while there are any; cancel to stop."""
        await every(_LOOK_SECONDS, self._look_for_all, name="streams", pause=self._pause)

    async def _look_for_all(self) -> None:
        self._is_behind = False
        if not self._count:
            await self._rest()
        self._is_behind = await self._look_once()

    async def _rest(self) -> None:
        self._reached = None
        self._ending.clear()
        await self._watch()
        while not self._count:
            self._wake.clear()
            await self._wake.wait()

    async def _look_once(self) -> bool:
        if self._reached is None:
            horizon = await self._log.horizon()
            self._reached = horizon, horizon.position
            return False
        await self._watch()
        before, after = self._reached
        of = {
            followed: [topic.of for topic in self._following if topic.followed is followed]
            for followed in StreamSubject
        }
        fresh = await self._log.fresh(
            after,
            texts_from=before.below,
            jobs=_ids(of[StreamSubject.JOB]),
            roots={stream.root for stream in self._all() if stream.root},
            conversations=_ids(one for followed in _OF_CONVERSATIONS for one in of[followed]),
            tenants=[str(one) for one in of[StreamSubject.TENANT]],
            texts=self._watched,
            limit=_MOST_EVENTS,
        )
        self._reached = fresh.horizon, fresh.reached
        await self._tell_of_holder()
        for one in fresh.found:
            self._put(one)
        is_behind = fresh.reached != fresh.horizon.position
        self._conclude(fresh, is_behind=is_behind)
        return is_behind

    async def _tell_of_holder(self) -> None:
        """Log each transaction that delays events once, and send a comment to the streams."""
        if monotonic() < self._asked_at:
            return
        self._asked_at = monotonic() + _ASK_EVERY_SECONDS
        if await self._log.held_seconds() >= HELD_SECONDS:
            for stream in self._all():
                stream.put(HELD_BACK)
        holder = await self._log.holder()
        by = None if holder is None else holder.pid or 0
        if holder is not None and by != self._held_by:
            about = {"pid": holder.pid, "application": holder.application, "database": holder.database}
            _log.warning("events_held_back", extra={**about, "seconds": round(holder.seconds)})
        self._held_by = by

    def _put(self, one: LoggedEvent | TextPiece) -> None:
        if isinstance(one, TextPiece):
            streams = [*self._streams_of(one.epoch.job_id), *self._trees_above(one.epoch.job_id)]
            frame = text_frame(one) if streams else b""
        else:
            trees = [of for above in one.lineage for of in self._following.get(Topic(StreamSubject.TREE, above), ())]
            if one.conversation_id is not None:
                trees += self._following.get(Topic(StreamSubject.TALK, one.conversation_id), ())
            for tree in trees:
                _note_below(tree, one)
            streams = [
                *self._following.get(Topic(StreamSubject.JOB, one.job_id), ()),
                *self._following.get(Topic(StreamSubject.TENANT, one.tenant_id), ()),
                *trees,
            ]
            if one.conversation_id is not None:
                streams += self._following.get(Topic(StreamSubject.CONVERSATION, one.conversation_id), ())
            frame = event_frame(one) if streams else b""
            if one.kind in _ENDINGS:
                self._ending[one.job_id] = None
        for stream in streams:
            stream.put(frame)

    def _conclude(self, fresh: FreshEvents, *, is_behind: bool) -> None:
        """End the streams of ended jobs, once every event from before the end was put into them.

        An event may follow that of the end if their transactions overlapped. It is there when every transaction that
        had begun by then has ended.
        """
        for job_id, until in list(self._ending.items()):
            until = fresh.horizon.following if until is None else until
            self._ending[job_id] = until
            if is_behind or fresh.horizon.below < until:
                continue
            del self._ending[job_id]
            if streams := self._streams_of(job_id):
                task = asyncio.create_task(self._tell_end(streams[0].tenant_id, job_id))
                self._concluding.add(task)
                task.add_done_callback(self._concluding.discard)

    async def _tell_end(self, tenant_id: str, job_id: UUID) -> None:
        try:
            async with self._telling:
                document = await self._ended_job(tenant_id, job_id)
        except NotFound:
            for stream in self._streams_of(job_id):
                stream.cut()
        except DatabaseUnavailable:
            self._ending.setdefault(job_id, None)
        else:
            if document is not None:  # else somebody has resumed it
                frame = job_frame(document)
                for stream in self._streams_of(job_id):
                    stream.end(frame)

    async def _watch(self) -> None:
        """Announce for which jobs texts are followed, if that has changed or would expire."""
        wanted = set(_ids(topic.of for topic in self._following if topic.followed not in _OF_CONVERSATIONS))
        wanted |= {job_id for tree in self._trees() for job_id in tree.below}
        new, gone = wanted - self._watched, self._watched - wanted
        if monotonic() >= self._watched_until:
            new = wanted
        await self._texts.watch(new, self._id, _WATCH_SECONDS)
        await self._texts.unwatch(gone, self._id)
        if new is wanted:
            self._watched_until = monotonic() + _WATCH_EVERY_SECONDS
        self._watched = wanted

    def _admit(self) -> None:
        """Let waiting streams join, between two queries."""
        if self._reached is None:
            return
        for stream, joined in self._joining:
            if not joined.done():
                horizon, stream.joined = self._reached
                stream.texts_below = horizon.below
                self._following.setdefault(stream.topic, set()).add(stream)
                joined.set_result(None)
        self._joining.clear()

    async def _pause(self, seconds: float) -> None:
        """Wait for the next query, unless there is more already, and let streams join meanwhile."""
        self._admit()
        if self._is_behind:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except TimeoutError:
                return
            self._admit()

    def _streams_of(self, job_id: UUID) -> list[Stream]:
        return [
            stream
            for followed in (StreamSubject.JOB, StreamSubject.TREE)
            for stream in self._following.get(Topic(followed, job_id), ())
        ]

    def _trees(self) -> list[Stream]:
        following = self._following.items()
        return [stream for topic, mine in following if topic.followed in _WITH_TEXTS_BELOW for stream in mine]

    def _trees_above(self, job_id: UUID) -> list[Stream]:
        return [stream for stream in self._trees() if job_id in stream.below]

    def _all(self) -> list[Stream]:
        return [stream for streams in self._following.values() for stream in streams]


def _note_below(tree: Stream, event: LoggedEvent) -> None:
    if event.kind in _ENDINGS:
        tree.below.discard(event.job_id)
    elif event.kind in _BEGINNINGS and event.job_id != tree.topic.of:
        tree.below.add(event.job_id)


def _ids(found: Iterable[UUID | str]) -> Collection[UUID]:
    return [one for one in found if isinstance(one, UUID)]
