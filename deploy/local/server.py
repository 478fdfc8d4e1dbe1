"""The common parts of embedded servers: a locked folder, a log, a start that waits for an answer."""

from __future__ import annotations

import signal
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import ClassVar

from planq.deploy.local.child import RunAs, spawn, stop
from planq.deploy.local.folder import FolderLock, make_private, size_of
from planq.deploy.local.supervisor import SupervisedProcess
from planq.shared.platform.data_folder import usable
from planq.shared.platform.errors import Unavailable


class EmbeddedServer(SupervisedProcess):
    """One server on a data folder, for one thread; `launch` it in a thread that outlives it (see `child`)."""

    title: ClassVar[str]
    unavailable: ClassVar[type[Unavailable]]
    stops: ClassVar[tuple[tuple[signal.Signals, float], ...]]
    """The signals that end it, milder first, each with the seconds that it gets."""

    ready_seconds: ClassVar[float]
    relaunches = 0
    """Number of relaunches when it ends while starting."""

    def __init__(self, name: str, data_dir: Path) -> None:
        self._home = data_dir.absolute()
        super().__init__(name, self._home / "server.log", patience=self.stops[0][1])
        self.parting = self.stops[0][0]
        self._lock = FolderLock(self._home, f"an embedded {self.title}")

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self.has_stopped() else self._process.pid

    def start(self, patience: float | None = None) -> None:
        self.launch()
        self.wait_ready(patience)

    def launch(self) -> None:
        """Start the server without waiting; raise `Misconfigured` without its program, or for an unusable folder."""
        if self._process is not None:
            self.stop()
        with usable(self._home):
            make_private(self._home)
            self._lock.acquire(patience=20.0)
            try:
                self._spawn()
            except BaseException:
                self._lock.release()
                raise

    @abstractmethod
    def _spawn(self) -> None:
        """Start the server on the folder, whose lock is held."""

    @abstractmethod
    def _answers(self) -> bool:
        """Say whether the server serves."""

    def _run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        identity: RunAs | None = None,
    ) -> None:
        self._begins = size_of(self.log)
        with self.log.open("ab") as log:
            lock = self._lock.fileno()
            self._process = spawn(
                argv, log=log, parting=self.parting, env=env, identity=identity, keep_open=[lock], cwd=cwd
            )

    def wait_ready(self, patience: float | None = None) -> None:
        """Wait at most `patience` seconds for an answer; otherwise stop it and raise `Unavailable` with its log."""
        patience = self.ready_seconds if patience is None else patience
        give_up, relaunches = monotonic() + patience, self.relaunches
        while True:
            if self.has_stopped():
                if self._process is None or not relaunches:
                    trouble = "ended while it was starting"
                    break
                relaunches -= 1
                self.launch()
            elif self._answers():
                return
            elif monotonic() >= give_up:
                trouble = f"did not answer within {patience:g} s"
                break
            sleep(0.02)
        self.stop()
        words = self.last_words()
        raise self.unavailable(f"the embedded {self.title} {trouble}. End of {self.log}:\n{words}")

    def stop(self, patience: float | None = None) -> None:
        """Shut the server down and free the folder; idempotent. `patience` is for the mildest signal."""
        if self._process is not None:
            (first, seconds), *harsher = self.stops
            stop(self._process, (first, seconds if patience is None else patience), *harsher)
            self._process = None
        self._lock.release()

    def end(self) -> None:
        self.stop(patience=1.0)
