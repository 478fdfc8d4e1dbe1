"""`planq doctor`: is everything there that planq needs? Each check finds one fact, and says what to do about it.

A check never raises for what it looks for: a server that does not answer is a finding. Nothing is changed anywhere.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from planq.api.cli import runtime
from planq.api.cli.connection import ApiKey, AsJson, Url, connect, located_settings
from planq.api.cli.console import as_line, out, print_json
from planq.api.cli.outcome import NOT_OK, OK, end, reported
from planq.shared.kernel.states import OWN_POOLS, Pool, pools_of, wake_queues
from planq.shared.platform.data_folder import free_space, lacks_space, serves
from planq.shared.platform.errors import BrokerUnavailable, Misconfigured, PlanqError
from planq.shared.platform.launcher import PYTHON
from planq.shared.platform.redact import redacted, without_password

if TYPE_CHECKING:
    from planq.shared.platform.database import Database, Row
    from planq.shared.settings.settings import Settings

_PATIENCE_SECONDS = 3
_MCP_SECONDS = 15
"""A program that speaks MCP may have to be fetched before it starts."""

_CHECK_SECONDS = 60
"""A worker's libraries take two seconds to load, on a busy machine many more."""

_START = "start `planq up`"

_MOST_CHARS = 2_000
"""Maximum length of a line; statements to run are printed whole."""

T = TypeVar("T")

_MOST_LAG_MS = 1_000
"""Above this a worker's event loop is late enough for a warning: a cancelled call shall end within a second."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report; `ok` None: not looked at. `advice` says what to do, `""` for nothing.

    What is ok and has advice is a warning: planq works, and an operator should look.
    """

    name: str
    ok: bool | None
    found: str
    advice: str = ""


def doctor(
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
    invariants: Annotated[
        bool, typer.Option("--invariants", help="Also check the stored history; reads all of it.")
    ] = False,
) -> None:
    """Check that planq has all it needs.

    Environment, settings, servers, schema, queues, workers and API; exit code 1 unless all are ok.
    """
    findings: list[CheckResult] = []
    with reported(as_json=as_json):
        for finding in examine(url, api_key, invariants=invariants):
            findings.append(finding)
            if not as_json:
                _show(finding)
    is_well = all(finding.ok for finding in findings)
    if as_json:
        print_json({"ok": is_well, "checks": [asdict(finding) for finding in findings]})
    end(OK if is_well else NOT_OK)


def _show(finding: CheckResult) -> None:
    mark, style = {True: ("ok", "green"), False: ("not ok", "red"), None: ("-", "dim")}[finding.ok]
    if finding.ok and finding.advice:
        mark, style = "warning", "yellow"
    out.print(f"{mark:<7} {as_line(finding.name, 60):<20} {as_line(finding.found, _MOST_CHARS)}", style=style)
    if finding.advice:
        out.print(f"{'':<7} {'':<20} → {as_line(finding.advice, _MOST_CHARS)}")


def examine(url: str | None, api_key: str | None, *, invariants: bool = False) -> Iterator[CheckResult]:
    """Yield the findings, one after the other as they are made; `invariants` reads the whole stored history too."""
    # An older Python could not have loaded this module.
    yield CheckResult("python", True, f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    try:
        settings = located_settings()
    except Misconfigured as error:
        yield CheckResult("settings", False, error.message, "correct the environment variables that are named")
        yield from _unseen(
            (
                *("tools and models", "database", "schema", "broker", "queues", "dead letters"),
                *(*_OF_THE_DATABASE, "workers", "tools", "jobs"),
            ),
            "settings",
        )
    else:
        yield CheckResult("settings", True, f"model {settings.model}, log level {settings.log_level}")
        yield _worker_settings(settings)
        yield from _mcp_servers(settings)
        yield from _embedded(settings)
        yield from _space(settings)
        yield from _stores(settings)
        if settings.payloads:
            yield _payloads(settings)
        if invariants:
            yield _seen(settings, "invariants", _invariants)
    yield _api(url, api_key)


def _worker_settings(settings: Settings) -> CheckResult:
    command = [*PYTHON, "-m", "planq.worker", Pool.IO, "--check"]
    # A worker asks for the broker's URL before anything else; whether there is one is found further below.
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        found = f"not known: no answer within {_CHECK_SECONDS} s"
        return CheckResult("tools and models", None, found, f"try `{' '.join(command[1:])}`")
    if done.returncode == 0:
        return CheckResult("tools and models", True, "what the settings name is there")
    found = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return CheckResult("tools and models", False, found.removeprefix("planq worker io: "), "correct what is named")


def _mcp_servers(settings: Settings) -> Iterator[CheckResult]:
    if settings.mcp_file is None:
        return
    from planq.worker.egress import Egress
    from planq.worker.tools.mcp.config import McpServer, PlanqOptions, read_mcp_file
    from planq.worker.tools.mcp.connection import ServerConnection
    from planq.worker.tools.mcp.listing import Listing
    from planq.worker.tools.mcp.toolbox import offered_tools

    async def count(server: McpServer) -> CheckResult:
        name, listed = f"MCP server {server.name}", list[Listing]()
        egress = Egress.read(settings.ca_file, settings.egress_proxy, os.environ)
        connection = ServerConnection(server, listed.append, egress)
        try:
            is_there = await connection.open()
        finally:
            await connection.aclose()
        if is_there:
            tools, faults = offered_tools(connection, listed[-1], [one.name for one in servers])
            found = f"{len(tools)} tools over {server.transport}"
            if faults:
                shown = "; ".join(faults[:_MOST_TOOLS])
                return CheckResult(name, True, f"{found}; {len(faults)} left out: {shown}", _LEFT_OUT)
            return CheckResult(name, True, found)
        if server.command is not None and shutil.which(server.command) is None:
            advice = f"install it, or correct `command` in {settings.mcp_file}"
            return CheckResult(name, False, f"the command {server.command!r} is not on the PATH", advice)
        return CheckResult(
            name, False, f"not reached: {connection.problem}", f"start or correct it, or correct {settings.mcp_file}"
        )

    try:
        servers = read_mcp_file(settings.mcp_file)
    except Misconfigured as error:
        yield CheckResult("MCP servers", False, error.message, "correct the file")
        return
    for server in servers:
        bounds = PlanqOptions(connect_timeout_seconds=min(server.planq.connect_timeout_seconds, _MCP_SECONDS))
        yield asyncio.run(count(server.model_copy(update={"planq": bounds})))


def _space(settings: Settings) -> Iterator[CheckResult]:
    data = runtime.data_folder()
    urls = (settings.database_url, settings.broker_url)
    if data.is_dir() and ("" in urls or serves(data, *urls)):
        lacking = lacks_space(data)
        yield CheckResult("disk", lacking is None, lacking or free_space(data).partition(";")[0])


def _embedded(settings: Settings) -> Iterator[CheckResult]:
    from planq.deploy.local.postgres import installed_binaries
    from planq.deploy.local.valkey import installed_binary

    finders: Sequence[tuple[str, Callable[[], Path], str]] = (
        ("embedded PostgreSQL", installed_binaries, settings.database_url),
        ("embedded Valkey", installed_binary, settings.broker_url),
    )
    for name, find, given in finders:
        try:
            yield CheckResult(name, True, f"installed ({_package(find())})")
        except Misconfigured as missing:
            yield CheckResult(name, bool(given), "not installed", "" if given else missing.message)


def _package(path: Path) -> str:
    parts = path.parts
    return parts[parts.index("site-packages") + 1] if "site-packages" in parts else str(path)


def _stores(settings: Settings) -> Iterator[CheckResult]:
    database = _database(settings)
    yield database
    if database.ok:
        yield (schema := _schema(settings))
    else:
        yield from _unseen(("schema",), "database")
    yield from _broker(settings, _pools(settings) if database.ok and schema.ok else OWN_POOLS)
    if database.ok and schema.ok:
        for name, look in _OF_THE_DATABASE.items():
            yield _seen(settings, name, look)
        yield from _worker_registry(settings)
    else:
        names = (*_OF_THE_DATABASE, "workers", "tools", "jobs")
        yield from _unseen(names, "database with this release's schema")


def _payloads(settings: Settings) -> CheckResult:
    from planq.shared.subjects.payloads.objects import open_objects

    try:
        objects = open_objects(settings.payloads)
        if objects is not None:
            asyncio.run(objects.check())
    except PlanqError as error:
        advice = "correct PLANQ_PAYLOADS, or the AWS_… variables that say how a bucket is reached"
        return CheckResult("large outputs", False, error.message, advice)
    return CheckResult("large outputs", True, f"kept at {without_password(settings.payloads)}")


def _unseen(names: Iterable[str], lacking: str) -> Iterator[CheckResult]:
    for name in names:
        yield CheckResult(name, None, f"not looked at: needs the {lacking}")


def _database(settings: Settings) -> CheckResult:
    import psycopg

    from planq.shared.kernel.schema_version import corrections, server_connection, wrong_settings

    try:
        if not settings.database_url:
            raise Misconfigured("DATABASE_URL is not set, and no `planq up` runs here")
        url, pooled_schema = settings.require_database(), settings.pooled_schema
        with server_connection(url, pooled_schema, patience_seconds=_PATIENCE_SECONDS) as connection:
            version = connection.info.parameter_status("server_version")
            wrong = wrong_settings(connection, pooled_schema)
            advice = f"as the role's owner, run: {corrections(connection, wrong)}" if wrong else ""
    except Misconfigured as error:
        return CheckResult("database", False, error.message, f"{_START}, or set DATABASE_URL")
    except psycopg.Error as error:
        place = without_password(settings.database_url)
        advice = f"check DATABASE_URL and that the server runs, or unset it and {_START}"
        return CheckResult("database", False, f"no answer from {place}: {_first_line(error)}", advice)
    found = f"PostgreSQL {version} at {without_password(settings.database_url)}"
    if wrong:
        found += f"; its sessions have {', '.join(f'{name} = {value}' for name, (value, _) in wrong.items())}"
    return CheckResult("database", True, found, advice)


def _schema(settings: Settings) -> CheckResult:
    from planq.shared.kernel.schema_version import current, require_schema

    url, pooled_schema = settings.require_database(), settings.pooled_schema
    try:
        require_schema(url, pooled_schema)
        return CheckResult(
            "schema", True, f"version {current(url, pooled_schema).version}, which this release can use"
        )
    except Misconfigured as error:  # as `planq migrate` and every process say it
        found, _, advice = error.message.partition("; ")
        return CheckResult("schema", False, found, advice)
    except PlanqError as error:
        return CheckResult("schema", False, error.message, "check that the server runs")


def _pools(settings: Settings) -> Sequence[str]:
    from planq.shared.kernel.store.worker_registry import WorkerRegistry

    try:
        return pools_of(_asked(settings, lambda database: WorkerRegistry(database, settings.lease).live()))
    except PlanqError:
        return OWN_POOLS


def _broker(settings: Settings, pools: Iterable[str]) -> Iterator[CheckResult]:
    if not settings.broker_url:
        yield CheckResult(
            "broker", False, "BROKER_URL is not set, and no `planq up` runs here", f"{_START}, or set BROKER_URL"
        )
        yield from _unseen(("queues", "dead letters"), "broker")
        return
    place = without_password(settings.broker_url)
    try:
        waiting, dead = _messages(settings.require_broker(), settings.broker_prefix, pools)
    except Misconfigured as error:
        yield CheckResult("broker", False, error.message, "correct BROKER_URL")
    except BrokerUnavailable as error:
        advice = f"check BROKER_URL and that the server runs, or unset it and {_START}"
        yield CheckResult("broker", False, f"{place} {error.message}", advice)
    else:
        yield CheckResult("broker", True, f"answers at {place}")
        yield CheckResult("queues", True, ", ".join(f"{name}: {n} waiting" for name, n in waiting.items()))
        yield _dead_letters(dead)
        return
    yield from _unseen(("queues", "dead letters"), "broker")


def _dead_letters(count: int) -> CheckResult:
    if not count:
        return CheckResult("dead letters", True, "none")
    advice = "something writes what is no wake-up: see `planq dead-letters list`, then `planq dead-letters drop`"
    return CheckResult(
        "dead letters", True, f"{count} message{'' if count == 1 else 's'} that were no wake-ups", advice
    )


def _messages(broker_url: str, prefix: str, pools: Iterable[str]) -> tuple[dict[str, int], int]:
    from kombu.exceptions import OperationalError

    from planq.shared.broker import names
    from planq.shared.broker.celery_config import create_celery
    from planq.shared.broker.depth import message_count, patient_connection, reply_of, require_service, waiting_count

    connection = patient_connection(create_celery(broker_url, prefix=prefix), _PATIENCE_SECONDS)
    try:
        with connection:
            require_service(connection, _PATIENCE_SECONDS)
            with connection.channel() as channel:
                queues = [queue for pool in pools for queue in wake_queues(Pool(pool))]
                counts = {names.queue(one): waiting_count(connection, channel, one) or 0 for one in queues}
                return counts, message_count(connection, channel, names.DEAD_LETTERS) or 0
    except (OperationalError, OSError, *connection.connection_errors, *connection.channel_errors) as error:
        reply = reply_of(error)
        found = f"refuses wake-ups: {reply}" if reply else f"does not answer: {_first_line(error)}"
        raise BrokerUnavailable(found) from error


def _seen(settings: Settings, name: str, look: Look) -> CheckResult:
    try:
        return _asked(settings, lambda database: look(database, settings))
    except PlanqError as error:
        return CheckResult(name, False, error.message, "check that the database runs")


async def _event_log(database: Database, _: Settings) -> CheckResult:
    from planq.shared.subjects.events.store import HELD_SECONDS, EventLog

    log = EventLog(database)
    ahead, holder, seconds = await log.ahead(), await log.holder(), await log.held_seconds()
    if holder is not None:
        advice = "end it" if holder.pid is None else f"end it there, or by SELECT pg_terminate_backend({holder.pid})"
        return CheckResult("event log", False, f"{holder}, so streams get no events", advice)
    if seconds >= HELD_SECONDS and not ahead:
        found = f"held back for {seconds:.0f} s by a transaction of a role whose sessions planq's role may not see"
        advice = "GRANT pg_read_all_stats TO planq's role, and run this again: it then names the process"
        return CheckResult("event log", False, found, advice)
    if not ahead:
        return CheckResult("event log", True, "in the order of this server's transactions")
    found = f"{ahead} event{'' if ahead == 1 else 's'} of another server, which no stream gets"
    advice = (
        "the dump was restored into a younger server: run the statement of docs/operations.md, Back up and restore"
    )
    return CheckResult("event log", False, found, advice)


async def _master_keys(database: Database, settings: Settings) -> CheckResult:
    from planq.shared.subjects.tenants.secrets import SecretStore

    used = await SecretStore(database, settings.master_keys).keys_in_use()
    lost = used.keys() - {key.id for key in settings.master_keys}
    if not lost:
        return CheckResult("master keys", True, f"all there, for {sum(used.values())} secrets")
    found = f"{', '.join(sorted(lost))} gone, for {sum(used[one] for one in lost)} of {sum(used.values())} secrets"
    advice = "put the keys back into PLANQ_SECRET_KEYS, or remove these secrets by `planq secrets remove`"
    return CheckResult("master keys", False, found, advice)


async def _objects(database: Database, settings: Settings) -> CheckResult:
    from planq.shared.subjects.payloads.store import PayloadStore

    count = await PayloadStore(database).count_objects(_MOST_OBJECTS)
    number = f"{count}{' or more' if count == _MOST_OBJECTS else ''}"
    shown = f"{number} object{'' if count == 1 else 's'} with large outputs in an object store"
    if count and not settings.payloads:
        advice = "set PLANQ_PAYLOADS as for the process that stored them, for every process"
        return CheckResult("objects", False, f"{shown}, and this process has no PLANQ_PAYLOADS", advice)
    return CheckResult("objects", True, shown)


async def _channels(database: Database, _: Settings) -> CheckResult:
    from planq.shared.subjects.channels.store import ChannelStore

    troubled = await ChannelStore(database).troubled(_MOST_CHANNELS)
    if not troubled:
        return CheckResult("channels", True, "nothing keeps any from being sent to")
    problems = "; ".join(f"{row['name']} of the tenant {row['tenant_id']}: {row['problem']}" for row in troubled)
    more = f"; and {left} more" if (left := troubled[0]["n"] - len(troubled)) else ""
    return CheckResult(
        "channels", True, problems + more, "their tenants see it by GET /channels, `planq channels list`"
    )


Look = Callable[["Database", "Settings"], Awaitable[CheckResult]]

_OF_THE_DATABASE: Mapping[str, Look] = {
    "event log": _event_log,
    "master keys": _master_keys,
    "objects": _objects,
    "channels": _channels,
}
_MOST_CHANNELS = 3


def _worker_registry(settings: Settings) -> Iterator[CheckResult]:
    from planq.shared.kernel.store.worker_registry import WorkerRegistry
    from planq.shared.subjects.tools.catalogue import list_tools

    async def ask(database: Database) -> tuple[Sequence[Row], set[str], CheckResult, Sequence[Row]]:
        registry = WorkerRegistry(database, settings.lease, settings.lease_margin)
        published = await list_tools(database)
        tools = _tools(len(published), await registry.awaited_tools(), await registry.differing_tools())
        named: set[str] = {one.pool for one in published.values()}
        return await registry.live(), named, tools, await registry.unfinished()

    try:
        workers, named, tools, unfinished = _asked(settings, ask)
    except PlanqError as error:
        for name in ("workers", "tools", "jobs"):
            yield CheckResult(name, False, error.message, "check that the database runs")
        return
    yield _workers(workers, named)
    for worker in workers:
        yield _worker(worker, _lacked(worker, workers))
    yield tools
    yield _jobs(unfinished)


def _asked(settings: Settings, ask: Callable[[Database], Awaitable[T]]) -> T:
    from planq.shared.platform.database import Database

    async def run() -> T:
        database = Database(
            settings.require_database(),
            has_pooler=settings.has_pooler,
            functions=settings.functions_schema,
            max_connections=1,
            timeout_seconds=_PATIENCE_SECONDS,
        )
        async with database:
            return await ask(database)

    return asyncio.run(run())


def _workers(workers: Sequence[Row], named: Iterable[str]) -> CheckResult:
    pools = {
        pool: sum(pool in worker["pools"] for worker in workers) for pool in pools_of([*workers, {"pools": named}])
    }
    found = ", ".join(f"{pool}: {n} live" for pool, n in pools.items())
    missing = [f"`planq worker {pool}`" for pool, n in pools.items() if n == 0]
    return CheckResult("workers", not missing, found, f"{_START}, or {' and '.join(missing)}" if missing else "")


_MOST_TOOLS = 5

_AWAY = "start the server; the worker connects again by itself"
_LACKED = "it hands such work back, which costs 15 s each time: give all workers the same PLANQ_PAYLOADS and keys"
_MOST_OBJECTS = 1000
_LEFT_OUT = "correct the tool in its server, or rename the server in mcp.json"


def _lacked(worker: Row, workers: Sequence[Row]) -> Sequence[str]:
    others = [other for other in workers if {*other["pools"]} & {*worker["pools"]}]
    return sorted({one for other in others for one in other["provides"] or []} - {*(worker["provides"] or [])})


def _worker(worker: Row, lacked: Sequence[str]) -> CheckResult:
    lag, late = worker["lag_ms"], worker["late_outcomes"]
    found = (
        f"{', '.join(worker['pools'])}: loop lag {lag} ms, {worker['in_flight']} of {worker['capacity']} in flight, "
        f"{late} late outcome{'' if late == 1 else 's'}"
    )
    advice = ""
    if worker["missing"]:
        return CheckResult(f"worker {worker['name']}", False, "; ".join(worker["missing"]), _AWAY)
    if worker["left_out"]:
        found, more = worker["left_out"][0], len(worker["left_out"]) - 1
        also = f" (and {more} more: see the page Workers, or `GET /workers`)" if more else ""
        return CheckResult(f"worker {worker['name']}", True, f"does not offer {found}{also}", _LEFT_OUT)
    if lacked:
        found = f"lacks what other workers of its pool have: {', '.join(lacked)}"
        return CheckResult(f"worker {worker['name']}", True, found, _LACKED)
    if lag > _MOST_LAG_MS:
        advice = (
            "its event loop is held up, by a tool that computes (give it the pool cpu) or by a machine that has too "
            "little CPU; start more workers, or lower PLANQ_IO_CONCURRENCY"
        )
    return CheckResult(f"worker {worker['name']}", True, found, advice)


def _tools(published: int, awaited: Sequence[Row], differing: Sequence[Row]) -> CheckResult:
    if not published:
        return CheckResult("tools", False, "none published", "start a worker: it publishes its tools")
    if awaited:
        waiting = [
            f"{row['n']} step{'s wait' if row['n'] > 1 else ' waits'} for {row['name']} in the pool {row['pool']} "
            f"since {row['since']:%H:%M:%S} UTC"
            for row in awaited[:_MOST_TOOLS]
        ]
        more = f" and for {len(awaited) - _MOST_TOOLS} other tools" if len(awaited) > _MOST_TOOLS else ""
        found = f"no live worker has what steps need: {', '.join(waiting)}{more}"
        return CheckResult(
            "tools", False, found, "start a worker that loads them, see PLANQ_TOOLS and PLANQ_TOOLS_FILE"
        )
    if differing:
        forms = [
            f"{row['name']} {row['version'] or row['digest']}: {', '.join(row['workers'][:3])}"
            for row in differing[: 2 * _MOST_TOOLS]
        ]
        advice = "during a deployment this is expected; else give all workers the same tools"
        return CheckResult("tools", True, f"workers have different schemas for one name: {'; '.join(forms)}", advice)
    return CheckResult("tools", True, f"{published} published")


def _jobs(unfinished: Sequence[Row]) -> CheckResult:
    counts = [f"{row['n']} {row['status']}" for row in unfinished if row["kind"] == "job"]
    return CheckResult("jobs", True, f"unfinished: {', '.join(counts)}" if counts else "none unfinished")


async def _invariants(database: Database, settings: Settings) -> CheckResult:
    from planq.shared.kernel.store.worker_registry import WorkerRegistry

    broken = await WorkerRegistry(database, settings.lease, settings.lease_margin).broken_invariants()
    found = [f"{row['invariant']} {row['job_id']} {_step(row)}".strip() for row in broken[:5]]
    more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
    if broken:
        return CheckResult(
            "invariants", False, "; ".join(found) + more, "run it again in a minute; if it stays, report it"
        )
    return CheckResult("invariants", True, "all hold")


def _step(row: Row) -> str:
    return "" if row["step_index"] is None else f"${row['step_index']}"


def _api(url: str | None, api_key: str | None) -> CheckResult:
    try:
        with connect(url, api_key) as client:
            answer: dict[str, Any] = client.readiness()
    except PlanqError as error:
        return CheckResult("api", False, error.message, f"{_START}, or name another with --url or PLANQ_URL")
    checks = answer.get("checks") or {}
    if answer.get("status") == "ready":
        return CheckResult("api", True, f"ready at {client.url}")
    bad = "; ".join(f"{name}: {check.get('detail')}" for name, check in checks.items() if not check.get("ok"))
    return CheckResult("api", False, f"at {client.url}, but not ready: {bad}", "see the lines above")


def _first_line(error: BaseException) -> str:
    # Libraries repeat an address that they cannot read.
    return redacted((str(error).strip() or type(error).__name__).splitlines()[0])
