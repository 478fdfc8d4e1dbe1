"""`planq up`: everything on one machine, watched, until Ctrl-C.

Embedded PostgreSQL and Valkey (unless URLs name others), migrations, API, an io worker for each priority, a cpu
worker, and Flower with `--flower`. This process only watches, so it stays small; whatever needs planq's heavy
libraries runs in a child.
"""

from __future__ import annotations

import http.client
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from planq.api.cli import runtime
from planq.api.cli.console import out
from planq.deploy.local.child import has_exited, reap, spawn
from planq.deploy.local.flower import FLOWER_USER, flower_password
from planq.deploy.local.folder import FolderLock, last_lines
from planq.deploy.local.parts import PLANQ, UpOptions, child_environment, environment_of, given_url, planq_parts
from planq.deploy.local.postgres import EmbeddedPostgres
from planq.deploy.local.server import EmbeddedServer
from planq.deploy.local.supervisor import PlanqProcess, StopRequests, Supervisor
from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.platform.data_folder import make_own, usable
from planq.shared.platform.database_url import SCHEMA, in_schema
from planq.shared.platform.errors import DatabaseUnavailable, Misconfigured, Unavailable
from planq.shared.platform.launcher import PYTHON
from planq.shared.platform.redact import without_password

_HEALTH_PATIENCE_SECONDS = 120.0
_MIGRATE_PATIENCE_SECONDS = 300.0
_SETTINGS_PATIENCE_SECONDS = 60.0
_CHECK_SETTINGS = """
import sys
from planq.shared.platform.errors import Misconfigured
from planq.shared.settings.environment import load_settings
try:
    load_settings()
except Misconfigured as error:
    sys.exit(error.message)
"""
_DATABASE_URLS = ("PLANQ_DATABASE_URL", "DATABASE_URL")
_HOPELESS_DEATHS = 3
"""A part that died so often in a row before it was ever healthy will not get well by itself."""

_STOP_ORDER: Sequence[Sequence[str]] = (("worker-io", "worker-io-bulk", "worker-cpu"), ("api",), ("flower",))
"""Workers first, while the API still shows how their jobs end; servers last, because all the others write to them."""


class StartInterrupted(Exception):
    """Ctrl-C or SIGTERM arrived before everything was up."""


def up(
    port: Annotated[int, typer.Option(envvar="PLANQ_PORT", min=1, max=65_535, help="Port of the API.")] = 8000,
    flower_port: Annotated[
        int, typer.Option(envvar="PLANQ_FLOWER_PORT", min=1, max=65_535, help="Port of Flower.")
    ] = 5555,
    host: Annotated[
        str, typer.Option(envvar="PLANQ_HOST", help="Address of the API; other than loopback needs PLANQ_API_KEYS.")
    ] = "127.0.0.1",
    data: Annotated[Path, typer.Option(envvar="PLANQ_DATA", help="Folder of the data and logs.")] = Path(".planq"),
    flower: Annotated[bool, typer.Option(help="Run Flower, which costs 1.9 ms of CPU per job.")] = False,
    sample: Annotated[bool, typer.Option(help="Submit the sample job once everything is healthy.")] = False,
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Bring the database of DATABASE_URL to this release without asking.")
    ] = False,
) -> None:
    """Start everything, stay up, and stop everything on Ctrl-C.

    DATABASE_URL and BROKER_URL (or REDIS_URL) replace the embedded servers. In a database of yours nothing is made or
    changed before you agree.
    """
    options = UpOptions(host, port, flower_port if flower else None, data.absolute(), may_migrate=migrate)
    interrupts = StopRequests()
    interrupts.listen()
    make_own(options.data)
    with usable(options.data):
        (options.data / "logs").mkdir(exist_ok=True, mode=0o700)
        lock = FolderLock(options.data, "planq").acquire(patience=5.0)
        try:
            check_ports(options)
            Session(options, interrupts).run(sample=sample)
        finally:
            lock.release()


def check_ports(options: UpOptions) -> None:
    """Raise `Misconfigured` that names the port and its option when a port is taken, before anything is started."""
    if options.port == options.flower_port:
        raise Misconfigured(f"the API and Flower cannot share port {options.port}; choose another with --flower-port")
    wanted = [(options.host, options.port, "--port or PLANQ_PORT", "the API")]
    if options.flower_port is not None:
        wanted.append(("127.0.0.1", options.flower_port, "--flower-port or PLANQ_FLOWER_PORT", "Flower"))
    for host, port, option, user in wanted:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As servers do: connections of an earlier run that are still closing do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as taken:
                raise Misconfigured(
                    f"{user} cannot listen on {host} port {port} ({taken.strerror}). "
                    f"Stop what uses it, or choose another port with {option}."
                ) from taken


class Session:
    def __init__(self, options: UpOptions, interrupts: StopRequests) -> None:
        self._options = options
        self._interrupts = interrupts
        self._supervisor = Supervisor(self._say, interrupts)
        self._begun = monotonic()

    def run(self, *, sample: bool) -> None:
        """Start, stay up until an interrupt, stop. Nothing is left running, however this ends."""
        try:
            database_url, broker_url = self._start_checked()
            runtime.publish(
                self._options.data, runtime.Runtime(os.getpid(), self._options.url, database_url, broker_url)
            )
            env = child_environment(self._options, database_url, broker_url)
            self._migrate(env)
            parts = planq_parts(self._options, env)
            for part in parts:
                self._supervisor.start(part)
            self._wait_healthy(parts)
            self._show(database_url, broker_url)
            if sample:
                self._run_sample(env)
            self._say("planq is up; Ctrl-C stops everything.")
            self._supervisor.tend_until(lambda: False)
        except StartInterrupted:
            pass
        finally:
            runtime.withdraw(self._options.data)
            self._say("stopping (Ctrl-C again: at once) …")
            self._supervisor.stop(*_STOP_ORDER)
            self._say("stopped; nothing of planq is left running.")

    def _say(self, line: str) -> None:
        out.print(line)

    def _start_checked(self) -> tuple[str, str]:
        """Start the servers while a child checks the settings; raise `Misconfigured` for bad ones."""
        log_path = self._options.log("settings")
        with log_path.open("wb") as log:
            env = child_environment(self._options, "", "")
            process = spawn([*PYTHON, "-c", _CHECK_SETTINGS], log=log, env=env)
        try:
            urls = self._start_servers()
            done = self._supervisor.tend_until(lambda: has_exited(process), _SETTINGS_PATIENCE_SECONDS)
        finally:
            code = reap(process)
        self._check_interrupts()
        if not done or code != 0:
            raise Misconfigured(last_lines(log_path))
        return urls

    def _start_servers(self) -> tuple[str, str]:
        database_url = given_url(*_DATABASE_URLS)
        broker_url = given_url("PLANQ_BROKER_URL", "BROKER_URL", "REDIS_URL")
        servers: list[EmbeddedServer] = []
        if broker_url is None:
            valkey = EmbeddedValkey(self._options.data / "valkey", self._say)
            self._supervisor.start(valkey)
            broker_url = valkey.url
            servers.append(valkey)
        if database_url is None:
            postgres = EmbeddedPostgres(self._options.data / "postgres")
            self._supervisor.start(postgres)
            database_url = postgres.url
            servers.append(postgres)
        for server in servers:
            server.wait_ready()
            self._check_interrupts()
        return database_url, broker_url

    def _migrate(self, env: dict[str, str]) -> None:
        """Bring the schema up to date; a child does it, since Alembic is heavy, and only where there is work."""
        if has_schema(env):
            return
        if given_url(*_DATABASE_URLS) is not None and not self._options.may_migrate:
            self._ask_for_migration(env)
        log_path = self._options.log("migrate")
        with log_path.open("wb") as log:
            process = spawn([*PLANQ, "migrate"], log=log, env=environment_of("migrate", env))
        try:
            done = self._supervisor.tend_until(lambda: has_exited(process), _MIGRATE_PATIENCE_SECONDS)
        finally:
            code = reap(process)
        self._check_interrupts()
        if not done or code != 0:
            raise DatabaseUnavailable(
                f"the database could not be migrated (log: {log_path}):\n{last_lines(log_path)}"
            )

    def _ask_for_migration(self, env: Mapping[str, str]) -> None:
        place = f"{without_password(env['DATABASE_URL'])}, schema {env.get('PLANQ_SCHEMA') or SCHEMA}"
        if sys.stdin.isatty() and typer.confirm(f"Create or change planq's tables there ({place})?"):
            return
        raise Misconfigured(
            f"DATABASE_URL names a database that has not this release's tables ({place}), and nothing was changed "
            "there; run `planq migrate`, or `planq up --migrate`, or unset DATABASE_URL for an embedded one"
        )

    def _wait_healthy(self, parts: Sequence[PlanqProcess]) -> None:
        checks = [(self._options.reachable_host, self._options.port, "/statusz")]
        if self._options.flower_port is not None:
            checks.append(("127.0.0.1", self._options.flower_port, "/healthcheck"))

        def all_answer() -> bool:
            checks[:] = [check for check in checks if not answers(*check)]
            return not checks

        def is_decided() -> bool:
            # The dead first: the others may answer before a part has found out that it cannot start.
            return bool(self._supervisor.hopeless(_HOPELESS_DEATHS)) or all_answer()

        decided = self._supervisor.tend_until(is_decided, _HEALTH_PATIENCE_SECONDS)
        dead = self._supervisor.hopeless(_HOPELESS_DEATHS)
        if decided and not dead:
            return
        self._check_interrupts()
        logs = "\n\n".join(f"{part.name} ({part.log}):\n{part.last_words()}" for part in dead or parts)
        if any(part.is_misconfigured() for part in dead):
            raise Misconfigured(f"planq cannot start as it is configured\n\n{logs}")
        silent = ", ".join(f"http://{host}:{port}{path}" for host, port, path in checks)
        waited = monotonic() - self._begun
        raise Unavailable(f"not healthy after {waited:.0f} s: no good answer from {silent}\n\n{logs}")

    def _show(self, database_url: str, broker_url: str) -> None:
        self._say(f"healthy in {monotonic() - self._begun:.1f} s")
        rows = {"page": f"{self._options.url}/", "API": self._options.url, "docs": f"{self._options.url}/docs"}
        if self._options.flower_port is not None:
            password = flower_password(self._options.data)
            rows["Flower"] = f"http://127.0.0.1:{self._options.flower_port}  user {FLOWER_USER}, password {password}"
        if not os.environ.get("PLANQ_SECRET_KEYS") and (keys := self._options.data / runtime.SECRET_KEYS).exists():
            rows["secrets"] = f"lie under the key in {keys}; keep a copy elsewhere"
        rows |= {"database": without_password(database_url), "broker": without_password(broker_url)}
        rows["data, logs"] = str(self._options.data)
        for label, value in rows.items():
            # Not a table: its cells would be cut to the terminal's width, and these lines are there to be copied.
            self._say(f"  {label:<11} {value}")

    def _run_sample(self, env: dict[str, str]) -> None:
        sys.stdout.flush()
        command = [*PLANQ, "sample", "--url", self._options.url]
        process = spawn(command, log=sys.stdout.fileno(), env=environment_of("sample", env))
        try:
            self._supervisor.tend_until(lambda: has_exited(process))
        finally:
            code = reap(process)
        self._check_interrupts()
        if code != 0:
            self._say(f"the sample job did not succeed (exit code {code}); planq itself is up.")

    def _check_interrupts(self) -> None:
        if self._interrupts.count:
            raise StartInterrupted


def has_schema(env: Mapping[str, str]) -> bool:
    """Return whether the database has this release's tables; raise `DatabaseUnavailable` or `Misconfigured`."""
    # Imported late: no other command needs the driver.
    from planq.shared.kernel.schema_version import current

    server = env.get("PLANQ_LISTEN_URL") or env["DATABASE_URL"]
    return current(in_schema(server, env.get("PLANQ_SCHEMA") or SCHEMA)).is_ready


def answers(host: str, port: int, path: str) -> bool:
    """Say whether a GET of this path is answered with 200 within two seconds."""
    connection = http.client.HTTPConnection(host, port, timeout=2.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
