"""Keeping a set of parts alive: start, watch, start again after a growing pause, and stop in order.

A part is an embedded server or a planq process. The supervisor runs in one thread, the main one, because a child dies
with the thread that started it (see `child`), and because signals arrive there.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import FrameType

from planq.deploy.local.child import exit_status, has_exited, reap, send, spawn
from planq.deploy.local.folder import last_lines, size_of
from planq.shared.platform.data_folder import usable
from planq.shared.platform.errors import PlanqError
from planq.shared.platform.values.backoff import pause_after

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_STEADY_SECONDS = 60.0
"""After this time a part counts as healthy: its next pause is the first one."""

_DEATHS_BEFORE_LOG = 2
"""Number of deaths in a row from which the end of the part's log is shown."""

_MISCONFIGURED = 2
"""The exit code with which planq's processes say that they cannot start as they are configured."""

_WATCH_SECONDS = 0.2
_HASTY_PATIENCE_SECONDS = 1.0
"""Patience with a part after a second Ctrl-C."""


class SupervisedProcess(ABC):
    """Something that runs in a process, may die, can be started again, and can be stopped."""

    def __init__(self, name: str, log: Path, *, patience: float) -> None:
        """`log` is where it writes; `patience` are the seconds that a stop may take."""
        self.name, self.log, self.patience = name, log, patience
        self.parting = signal.SIGTERM
        self._begins = 0
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def launch(self) -> None:
        """Start it (again) without waiting until it is ready; may raise PlanqError."""

    def last_words(self) -> str:
        return last_lines(self.log, since=self._begins)

    def has_died(self) -> bool:
        """Return whether it was launched and has ended without being asked to."""
        return self._process is not None and has_exited(self._process)

    def is_misconfigured(self) -> bool:
        """Return whether it has ended by itself and said that it cannot start as it is configured."""
        return False

    def ask_to_stop(self) -> None:
        if self._process is not None:
            send(self._process, self.parting)

    def has_stopped(self) -> bool:
        return self._process is None or has_exited(self._process)

    def end(self) -> None:
        """Kill what is left of it and free what it held; idempotent."""
        if self._process is not None:
            reap(self._process)
            self._process = None


class PlanqProcess(SupervisedProcess):
    def __init__(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path, *, patience: float = 10.0
    ) -> None:
        super().__init__(name, log, patience=patience)
        self._argv, self._env = list(argv), dict(env)

    def launch(self) -> None:
        """Start the process; what an earlier one left in its group is killed first."""
        self.end()
        self._begins = size_of(self.log)
        with usable(self.log.parent), self.log.open("ab") as log:
            self._process = spawn(self._argv, log=log, env=self._env)

    def is_misconfigured(self) -> bool:
        return self._process is not None and exit_status(self._process) == _MISCONFIGURED


@dataclass(slots=True)
class _Watch:
    part: SupervisedProcess
    started_at: float = 0.0
    deaths: int = 0
    restart_at: float | None = None


@dataclass(slots=True)
class StopRequests:
    """The number of stop requests: the first is orderly, the second in haste."""

    count: int = 0
    arrived: threading.Event = field(default_factory=threading.Event)

    def listen(self) -> None:
        """Count SIGINT, SIGTERM and SIGHUP from now on; main thread only. `nohup` keeps its meaning."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.arrived.set()

    def pause(self, seconds: float) -> None:
        """Wait `seconds`, or until the next interrupt."""
        self.arrived.wait(seconds)
        self.arrived.clear()


class Supervisor:
    """Watches parts and starts the dead ones again. `say` gets one line for people."""

    def __init__(self, say: Callable[[str], None], interrupts: StopRequests) -> None:
        self._say = say
        self._interrupts = interrupts
        self._watches: list[_Watch] = []

    def start(self, part: SupervisedProcess) -> None:
        """Start a part and watch it from now on; raises what the part raises, and then does not watch it."""
        part.launch()
        self._watches.append(_Watch(part, started_at=monotonic()))

    def hopeless(self, deaths: int) -> list[SupervisedProcess]:
        """Return the parts that have died so often in a row, or have said that they are misconfigured."""
        return [watch.part for watch in self._watches if watch.deaths >= deaths or watch.part.is_misconfigured()]

    def tend(self) -> None:
        """Look after every part once: note the dead, start again those whose pause is over."""
        for watch in self._watches:
            if watch.restart_at is not None:
                self._restart_when_due(watch)
            elif watch.part.has_died():
                self._note_death(watch)

    def tend_until(self, is_done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Tend until `is_done`, an interrupt, or `timeout` seconds; return whether it was `is_done`."""
        give_up = None if timeout is None else monotonic() + timeout
        while not is_done():
            if self._interrupts.count or (give_up is not None and monotonic() >= give_up):
                return False
            self.tend()
            self._interrupts.pause(_WATCH_SECONDS)
        return True

    def stop(self, *stages: Sequence[str]) -> None:
        """Stop the parts of each stage together, others last; kill those that exceed their patience."""
        named = {name for stage in stages for name in stage}
        groups = [[watch for watch in self._watches if watch.part.name in stage] for stage in stages]
        groups.append([watch for watch in self._watches if watch.part.name not in named])
        for group in groups:
            self._stop_together([watch.part for watch in group])
        self._watches.clear()

    def _stop_together(self, parts: Sequence[SupervisedProcess]) -> None:
        for part in parts:
            part.ask_to_stop()
        begun = monotonic()
        waiting = list(parts)
        while waiting:
            hasty = self._interrupts.count > 1
            waited = monotonic() - begun
            late = [
                p for p in waiting if waited >= (min(p.patience, _HASTY_PATIENCE_SECONDS) if hasty else p.patience)
            ]
            for part in [p for p in waiting if p.has_stopped() or p in late]:
                if not part.has_stopped():
                    self._say(f"{part.name} did not stop within {waited:.0f} s and is killed")
                part.end()
                waiting.remove(part)
            if waiting:
                self._interrupts.pause(0.05)

    def _note_death(self, watch: _Watch) -> None:
        now = monotonic()
        watch.deaths = 1 if now - watch.started_at >= _STEADY_SECONDS else watch.deaths + 1
        pause = pause_after(watch.deaths, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        watch.restart_at = now + pause
        how = "cannot start as it is configured" if watch.part.is_misconfigured() else "ended unexpectedly"
        self._say(f"{watch.part.name} {how}; starting it again in {pause:g} s (log: {watch.part.log})")
        if watch.deaths >= _DEATHS_BEFORE_LOG:
            self._say(watch.part.last_words())

    def _restart_when_due(self, watch: _Watch) -> None:
        if watch.restart_at is None or monotonic() < watch.restart_at:
            return
        watch.restart_at = None
        watch.started_at = monotonic()
        try:
            watch.part.launch()
        except PlanqError as refusal:
            self._say(f"{watch.part.name} cannot be started: {refusal}")
            self._note_death(watch)
        else:
            self._say(f"{watch.part.name} was started again")
