"""The folder of an embedded server: one owner at a time, a place for its socket, the end of its log.

The lock is inherited by the server, so that it is held as long as either planq or the server lives: a new planq
cannot start a second server on data that a dying one is still writing.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from pathlib import Path
from time import monotonic, sleep
from typing import Self

import psutil

from planq.shared.platform.errors import Misconfigured

LONGEST_SOCKET_PATH = 100
"""sun_path holds 108 bytes on Linux (unix(7)) and 104 on macOS, the closing zero included."""


class FolderLock:
    """An exclusive lock on `folder`, held until `release` and by every process that inherited `fileno()`."""

    def __init__(self, folder: Path, what: str) -> None:
        self._path = folder / "lock"
        self._what = what
        self._file: int | None = None

    def acquire(self, patience: float) -> Self:
        """Take the lock; wait `patience` seconds for a dead owner's server, then raise `Misconfigured`."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_up = monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                owner = os.pread(file, 20, 0).decode("ascii", "replace").strip()
                if monotonic() >= give_up or (owner.isdigit() and psutil.pid_exists(int(owner))):
                    os.close(file)
                    raise Misconfigured(
                        f"{self._what} in {self._path.parent} is already in use by process {owner or 'unknown'}. "
                        "Stop that one, or choose another folder with --data or PLANQ_DATA."
                    ) from None
                sleep(0.05)
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode("ascii"), 0)
        self._file = file
        return self

    def fileno(self) -> int:
        """Return the descriptor to pass on to a server; the lock must be held."""
        if self._file is None:
            raise ValueError("the lock is not held")
        return self._file

    def release(self) -> None:
        """Give up this process's share of the lock; harmless when it is not held."""
        if self._file is not None:
            os.ftruncate(self._file, 0)  # a server that still holds its share has no owner from now on
            os.close(self._file)
            self._file = None


def make_private(folder: Path) -> None:
    """Create `folder` (its parents too) so that only its owner can enter it; an existing one is left as it is."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    folder.mkdir(exist_ok=True, mode=0o700)


def socket_folder(home: Path, longest_name: str) -> Path:
    """Return a private folder for a socket: `home/run`, or a temporary one noted in `home/run.path`."""
    inside = home / "run"
    if len(os.fsencode(inside / longest_name)) <= LONGEST_SOCKET_PATH:
        make_private(inside)
        return inside
    note = home / "run.path"
    if note.exists():
        earlier = Path(note.read_text("utf-8"))
        if _is_private(earlier, {os.geteuid(), home.stat().st_uid}):
            return earlier
    place = Path(tempfile.mkdtemp(prefix="planq-"))
    if len(os.fsencode(place / longest_name)) > LONGEST_SOCKET_PATH:
        place.rmdir()
        place = Path(tempfile.mkdtemp(prefix="planq-", dir="/tmp"))
    note.write_text(str(place), "utf-8")
    return place


def _is_private(folder: Path, owners: set[int]) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid in owners


def size_of(log: Path) -> int:
    """Return where the next line of a log file begins, 0 where there is no file yet."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def last_lines(log: Path, count: int = 12, *, since: int = 0) -> str:
    """Return the last lines of a log file behind its byte `since`, or a sentence that there are none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(since, file.tell() - 16_384))
            lines = file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        lines = []
    return "\n".join(lines) or "(its log is empty)"
