"""A private PgBouncer from the system's package, in transaction mode, before one of our PostgreSQL servers."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import psycopg

from planq.deploy.local.child import RunAs, has_exited, spawn, stop
from planq.deploy.local.folder import last_lines
from planq.deploy.local.identity import give_to
from tests.support.ports import free_port
from tests.support.waiting import eventually

PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"


def missing() -> str | None:
    """Return what PgBouncer lacks on this machine, None when it can be started."""
    return None if Path(PROGRAM).exists() else "PgBouncer is not installed (Debian's package is pgbouncer)"


class PgBouncer:
    """One pooler below `folder`, before the server of `server_url`."""

    def __init__(self, folder: Path, server_url: str, *, connections: int = 8) -> None:
        self._folder = folder
        self._server = parse_qs(urlsplit(server_url).query)
        self._connections = connections
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def url_of(self, database_url: str) -> str:
        """Return the URL that leads to a database of the server through the pooler."""
        parts = urlsplit(database_url)
        return f"postgresql://{parts.username}@127.0.0.1:{self._port}{quote(parts.path)}"

    def start(self) -> None:
        """Start the pooler and wait until it lends a connection."""
        (host,), (port,) = self._server["host"], self._server["port"]
        (self._folder / "users").write_text('"planq" ""\n')
        config = self._folder / "pgbouncer.ini"
        config.write_text(
            f"[databases]\n* = host={host} port={port} user=planq\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self._port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {self._folder / 'users'}\npool_mode = transaction\nmax_client_conn = 500\n"
            f"default_pool_size = {self._connections}\nlog_connections = 0\nlog_disconnections = 0\n"
        )
        log = self._folder / "pgbouncer.log"
        identity = _like(Path(host)) if os.geteuid() == 0 else None
        if identity is not None:
            give_to(self._folder, identity.owner)
        with log.open("ab") as out:
            process = spawn([PROGRAM, str(config)], log=out, identity=identity, cwd=Path("/"))
        self._process = process
        try:
            eventually(lambda: has_exited(process) or self._answers(), 60, every=0.05, what="PgBouncer answers")
            assert not has_exited(process), f"PgBouncer ended while it was starting:\n{last_lines(log)}"
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the pooler; idempotent."""
        if self._process is not None:
            stop(self._process, (signal.SIGTERM, 5.0))
            self._process = None

    def _answers(self) -> bool:
        try:
            with psycopg.connect(f"postgresql://planq@127.0.0.1:{self._port}/postgres", connect_timeout=5):
                return True
        except psycopg.OperationalError:
            return False


def _like(folder: Path) -> RunAs:
    """Return as whom root runs what refuses to be root, as PostgreSQL does, so that it may use that one's socket."""
    nobody = pwd.getpwnam("nobody")
    uid, gid = nobody.pw_uid, nobody.pw_gid
    owner = folder.stat()
    return RunAs("namespace" if owner.st_uid == 0 else "reach", uid, gid, owner=(owner.st_uid, owner.st_gid))
