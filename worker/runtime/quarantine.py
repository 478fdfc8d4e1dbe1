"""Processes of their own for suspects: what was in flight in a lost worker runs again apart from everything else.

A worker has them forked when suspects wait, and each ends when no more do. They claim groups of suspects straight
from the database and take no messages: nothing else is ever lost with a step that kills its process.

They are forked from a process that the worker has forked before it began anything (a zygote): a new interpreter would
take a second to start, or half a minute on a machine that is busy with what was just lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
from collections.abc import Callable
from itertools import count
from time import monotonic
from uuid import UUID

from planq.shared.domain.errors import DatabaseUnavailable, PlanqError
from planq.shared.domain.jobs.states import Lane
from planq.shared.launcher import die_with
from planq.shared.store.jobs.worker_registry import WorkerRegistry
from planq.worker.engine import Dispatcher

_log = logging.getLogger("planq.quarantine")

_AT_ONCE = 4
"""Processes that were just forked for a worker: as many as one loss makes groups."""

_MOST = 24
"""Processes of one worker in all: more than `_AT_ONCE` only while what is innocent takes long. Each loss on the way
to the guilty one leaves three groups that go on (12 of 300 attempts); the last ones must not wait for them. Each has
20 MB of its own (2026-11)."""

_SETTLED_SECONDS = 5.0
"""A process that lives for so long keeps nobody waiting any more: most steps that kill do so at once."""

_PARTING_SECONDS = 10.0
"""What a process gets beyond the drain time before it is killed."""

_AGAIN_SECONDS = 0.5

_REAP_SECONDS = 0.05


def fork_zygote(run: Callable[[UUID], int]) -> socket.socket:
    """Fork the process from which those for suspects are forked, and return the socket for `Quarantine`.

    Call it before there is a thread, a connection or a loop. `run(group)` is what each of them does; it returns the
    exit code.
    """
    ours, theirs = socket.socketpair()
    worker = os.getpid()
    if os.fork() == 0:
        ours.close()
        # A process group of its own: a peer that looks for what is left of the worker must not find it there.
        os.setpgid(0, 0)
        die_with(worker, signal.SIGTERM)
        try:
            _serve(theirs, run)
        finally:
            os._exit(0)
    theirs.close()
    return ours


def _serve(requests: socket.socket, run: Callable[[UUID], int]) -> None:
    """Fork a process for each group that a line names, report how each ended, and pass signals on, until the end."""
    forked: dict[int, str] = {}
    rest = b""
    while select.select([requests], [], [], _REAP_SECONDS if forked else None)[0] or forked:
        with contextlib.suppress(BlockingIOError):
            received = requests.recv(4096, socket.MSG_DONTWAIT)
            if not received:
                return  # the worker has ended, and so will they
            *lines, rest = (rest + received).split(b"\n")
            for line in lines:
                kind, _, group = line.decode().partition(" ")
                if kind == "begin":
                    number, _, group = group.partition(" ")
                    forked[_fork(requests, run, group)] = number
                for pid in forked if kind in signal.Signals.__members__ else ():
                    os.kill(pid, signal.Signals[kind])
        for pid in list(forked):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                requests.sendall(f"{forked.pop(pid)} {os.waitstatus_to_exitcode(status)}\n".encode())


def _fork(requests: socket.socket, run: Callable[[UUID], int], group: str) -> int:
    zygote = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        requests.close()
        os.setpgid(0, 0)
        die_with(zygote, signal.SIGTERM)
        code = run(UUID(group))
    except PlanqError as error:
        _log.error("suspects_not_carried_out", extra={"group": group, "cause": error.message})
    except BaseException:
        _log.exception("suspects_not_carried_out", extra={"group": group})
    finally:
        os._exit(code)


class Quarantine:
    """The processes for suspects of one worker. Belongs to one event loop."""

    def __init__(
        self,
        lane: Lane,
        zygote: socket.socket,
        worker_registry: WorkerRegistry,
        died: Callable[[], None],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`died` is called when one of the processes has ended otherwise than in peace; `clock` counts seconds."""
        self._lane = lane
        self._zygote = zygote
        self._registry = worker_registry
        self._died = died
        self._clock = clock
        self._numbers = count(1)
        self._begun: dict[str, float] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._looking: asyncio.Task[None] | None = None
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._is_closing = False

    async def listen(self) -> None:
        """Hear from the zygote for ever; cancel to end."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._zygote)
        while line := await reader.readline():
            number, _, code = line.decode().strip().partition(" ")
            self._begun.pop(number, None)
            if not self._begun:
                self._none_left.set()
            if int(code) != 0:
                _log.warning("suspects_lost", extra={"number": number, "exit_code": int(code)})
                self._died()
            self.look()
        _log.error("zygote_gone")  # suspects wait for those of other workers, or until anybody may claim them
        self._writer = None

    def look(self) -> None:
        """Have processes forked for the groups that wait, as far as there is room; returns at once."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    def ask_to_stop(self) -> None:
        """Begin no more, and let those that run end their steps within the drain time; returns at once."""
        self._is_closing = True
        self._send(signal.SIGTERM.name)

    async def stop(self, patience_seconds: float) -> None:
        """Ask to stop, and return when all have ended; what has not within `patience_seconds` is killed."""
        self.ask_to_stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds + _PARTING_SECONDS):
                await self._none_left.wait()
                return
        self._send(signal.SIGKILL.name)

    @property
    def _has_room(self) -> bool:
        now = self._clock()
        unsettled = sum(now - begun < _SETTLED_SECONDS for begun in self._begun.values())
        is_open = self._writer is not None and not self._is_closing
        return is_open and unsettled < _AT_ONCE and len(self._begun) < _MOST

    async def _look(self) -> None:
        with contextlib.suppress(DatabaseUnavailable):
            while self._has_room and (group := await self._registry.take_suspects(self._lane)) is not None:
                number = str(next(self._numbers))  # a group may be begun again while its first process is on its way
                _log.warning("suspects_begun", extra={"group": str(group), "number": number})
                self._begun[number] = self._clock()
                self._none_left.clear()
                self._send(f"begin {number} {group}")

    def _send(self, line: str) -> None:
        if self._writer is not None:
            self._writer.write(f"{line}\n".encode())


async def carry_out_suspects(
    engine: Dispatcher,
    group: UUID,
    drain_seconds: float,
    stop: asyncio.Event,
    threads_left: Callable[[], int] = lambda: 0,
) -> None:
    """Carry out a group of suspects, then others that wait, until there are none or `stop` is set.

    Nor does it go on with `threads_left`, of calls that nobody waits for any more: only the end of the process ends
    what such a one computes.

    Then what runs gets `drain_seconds`, and is given back after that. Where the database does not answer, or the
    lease cannot be renewed, the claim is repeated.
    """
    next_group: UUID | None = group
    while not stop.is_set():
        running = asyncio.create_task(engine.run_suspects(next_group))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await asyncio.wait({running}, timeout=drain_seconds if stop.is_set() else None)
        running.cancel()
        try:
            carried = await running
        except asyncio.CancelledError:
            return
        except DatabaseUnavailable as error:
            _log.warning("suspects_not_claimed", extra={"cause": error.message})
            await asyncio.wait({asyncio.create_task(stop.wait())}, timeout=_AGAIN_SECONDS)
            continue
        if carried.poisoned or threads_left() or (next_group is None and not carried.steps):
            return
        next_group = None
