"""`planq doctor`: against nothing, against servers without planq, and against a planq that is well."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from typer.testing import CliRunner, Result

from planq.deploy.cli import doctor as doctor_module
from planq.deploy.cli.main import create_app
from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.broker.celery_config import create_celery
from planq.shared.broker.dead_letters import MOST_LETTERS, DeadLetter, DeadLetters
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Pool
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database
from planq.shared.settings.settings import Settings
from planq.shared.subjects.payloads.objects import open_objects
from planq.shared.subjects.payloads.store import PayloadStore
from tests.support.clock import move_clock
from tests.support.ended import ended
from tests.support.ports import free_port
from tests.support.refusing import REFUSALS
from tests.support.stack import Stack
from tests.support.tiers import rare, some
from tests.support.waiting import eventually

Doctor = Callable[..., Result]


Looks = dict[tuple[tuple[str, str], ...], doctor_module.CheckResult]
PLACES = frozenset({"PLANQ_DATA", "PLANQ_PORT", "PLANQ_URL"})


@pytest.fixture(scope="module")
def looks() -> Looks:
    """What a worker finds of the settings, by what else than places is set."""
    return {}


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: Looks) -> Doctor:
    examined = doctor_module._worker_settings

    def looked_at_once(settings: Settings) -> doctor_module.CheckResult:
        """Start a worker for the same settings once: its libraries take seconds, and it asks no server."""
        given = {name: value for name, value in os.environ.items() if name.startswith("PLANQ_")}
        key = tuple(sorted((name, value) for name, value in given.items() if name not in PLACES))
        if key not in looks:
            looks[key] = examined(settings)
        return looks[key]

    monkeypatch.setattr(doctor_module, "_worker_settings", looked_at_once)
    for name in ("DATABASE_URL", "BROKER_URL", "REDIS_URL", "PLANQ_PORT", "PLANQ_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLANQ_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("PLANQ_URL", f"http://127.0.0.1:{free_port()}")

    def run(*arguments: str, **env: str) -> Result:
        return CliRunner().invoke(create_app(), ["doctor", *arguments], env=env)

    return run


def checks(result: Result) -> dict[str, dict[str, Any]]:
    document = json.loads(result.stdout)
    assert document["ok"] == (result.exit_code == 0)
    return {one["name"]: one for one in document["checks"]}


def test_against_nothing_every_line_says_what_to_do(doctor: Doctor) -> None:
    found = checks(result := doctor("--json"))

    assert result.exit_code == 1
    assert {name for name, one in found.items() if one["ok"]} == {
        "python",
        "settings",
        "tools and models",
        "embedded PostgreSQL",
        "embedded Valkey",
    }
    assert {name for name, one in found.items() if one["ok"] is False} == {"database", "broker", "api"}
    assert all("planq up" in one["advice"] for one in found.values() if one["ok"] is False)
    assert found["workers"]["ok"] is None


def test_servers_that_do_not_answer_are_named_without_their_passwords(doctor: Doctor) -> None:
    port = free_port()
    urls = {
        "DATABASE_URL": f"postgresql://me:secret@127.0.0.1:{port}/x",
        "BROKER_URL": f"redis://:secret@127.0.0.1:{port}/0",
    }

    found = checks(result := doctor("--json", **urls))

    assert str(port) in found["database"]["found"]
    assert str(port) in found["broker"]["found"]
    assert "DATABASE_URL" in found["database"]["advice"]
    assert "secret" not in result.output


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("DATABASE_URL", "postgresql://me:secret@[::1/x"),
        rare("DATABASE_URL", "postgresql://127.0.0.1:1/x?user=me&password=secret"),
        ("BROKER_URL", "redis://:secret@127.0.0.1:port/0"),
        ("PLANQ_MODEL_BASE_URL", "ftp://me:secret@there"),
        rare("PLANQ_API_KEYS", "secret\u00e9"),
    ],
)
def test_what_cannot_be_read_is_named_without_its_password(doctor: Doctor, name: str, url: str) -> None:
    result = doctor(**{name: url})

    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert name in result.output
    assert "secret" not in result.output


@pytest.mark.parametrize("url", some(["nonsense://x", "redis+nonsense://", "http://127.0.0.1"], "redis+nonsense://"))
def test_a_broker_of_an_unknown_kind_is_a_finding(doctor: Doctor, url: str) -> None:
    found = checks(doctor("--json", BROKER_URL=url))

    assert found["broker"]["ok"] is False
    assert "expected redis://" in found["broker"]["found"]


def test_bad_settings_are_named_and_the_rest_is_not_looked_at(doctor: Doctor) -> None:
    found = checks(doctor("--json", PLANQ_IO_CONCURRENCY="many"))

    assert "IO_CONCURRENCY" in found["settings"]["found"].upper()
    assert found["database"]["ok"] is None


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("PLANQ_MODEL", "gpt-4o", "settings"),
        rare("PLANQ_HEARTBEAT_SECONDS", "99", "settings"),
        ("PLANQ_HOTS", "0.0.0.0", "settings"),
        rare("PLANQ_MCP_FILE", "/dev/null", "tools and models"),
        ("PLANQ_TOOLS", "no_such_module_anywhere", "tools and models"),
    ],
)
def test_a_setting_that_cannot_be_is_a_finding_with_its_name(
    doctor: Doctor, name: str, value: str, line: str
) -> None:
    found = checks(doctor("--json", **{name: value}))

    assert found[line]["ok"] is False
    assert name in found[line]["found"]


def test_the_room_for_the_embedded_servers_is_told(doctor: Doctor, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()

    found = checks(doctor("--json", PLANQ_DATA=str(data)))["disk"]

    assert found["ok"] is True
    assert found["found"].endswith("KiB are free")


def test_the_place_of_large_outputs_is_written_to_and_read(doctor: Doctor, tmp_path: Path) -> None:
    folder = tmp_path / "large"

    found = checks(doctor("--json", PLANQ_PAYLOADS=f"file://{folder}"))["large outputs"]

    assert (found["ok"], [path for path in folder.rglob("*") if path.is_file()]) == (True, [])


@pytest.mark.parametrize(
    "bad", some(["s3://no-such-bucket/x", "gopher://x", "file:///proc/none"], "file:///proc/none")
)
def test_a_place_that_takes_no_large_outputs_is_a_finding(doctor: Doctor, bad: str) -> None:
    found = checks(doctor("--json", PLANQ_PAYLOADS=bad, AWS_ENDPOINT_URL=f"http://127.0.0.1:{free_port()}"))

    assert found["large outputs"]["ok"] is False
    assert "PLANQ_PAYLOADS" in found["large outputs"]["found"]


def test_a_broker_that_refuses_is_named_with_its_reply(doctor: Doctor, tmp_path: Path, whole: bool) -> None:
    server = EmbeddedValkey(tmp_path / "vk")
    server.start()
    try:
        with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
            for code, refusal in REFUSALS.items() if whole else [("OOM", REFUSALS["OOM"])]:
                refusal.begin(client, tmp_path / "vk" / "data")
                found = checks(doctor("--json", BROKER_URL=server.url))
                assert found["broker"]["ok"] is False
                assert f"refuses wake-ups: {code} " in found["broker"]["found"]
                assert found["dead letters"]["ok"] is None
                refusal.end(client, tmp_path / "vk" / "data")
            client.set("planq.io", "not a list")
            found = checks(doctor("--json", BROKER_URL=server.url))
            assert "refuses wake-ups: WRONGTYPE" in found["broker"]["found"]
    finally:
        server.stop()


def test_dead_letters_are_counted_listed_and_dropped(doctor: Doctor, broker_url: str) -> None:
    def command(*arguments: str) -> Result:
        return CliRunner().invoke(create_app(), ["dead-letters", *arguments], env={"BROKER_URL": broker_url})

    assert checks(doctor("--json", BROKER_URL=broker_url))["dead letters"]["found"] == "none"
    assert command("list").stdout == "no dead letters\n"
    assert json.loads(command("drop", "--json").stdout) == {"dropped": 0}
    dead_letters = DeadLetters(create_celery(broker_url))
    dead_letters.add([DeadLetter.of("planq.io", f"message {n} \x1b[31m", "no wake-up") for n in range(3)])
    dead_letters.close()

    found = checks(doctor("--json", BROKER_URL=broker_url))["dead letters"]
    assert (found["ok"], found["found"]) == (True, "3 messages that were no wake-ups")
    assert "planq dead-letters list" in found["advice"]
    told = command("list", "--limit", "2").stdout
    assert [line for line in ("message 2", "message 1", "message 0") if line in told] == ["message 2", "message 1"]
    assert "no wake-up" in told
    assert "\x1b" not in told
    items = json.loads(command("list", "--json").stdout)["items"]
    assert [item["message"].split()[1] for item in items] == ["2", "1", "0"]
    assert command("drop").stdout == "3 dropped\n"
    assert json.loads(command("list", "--json").stdout) == {"items": []}


def test_dead_letters_are_bounded_and_the_oldest_go_first(broker_url: str) -> None:
    dead_letters = DeadLetters(create_celery(broker_url))
    for start in range(0, 2_000, 500):
        dead_letters.add([DeadLetter.of("planq.io", str(n), "no wake-up") for n in range(start, start + 500)])
    eventually(lambda: dead_letters.count() == MOST_LETTERS, what="the oldest have gone")
    kept = dead_letters.list(MOST_LETTERS)
    assert [letter.message for letter in (kept[0], kept[-1])] == ["1999", "1000"]
    dead_letters.close()


@pytest.mark.parametrize("arguments", [("list",), ("drop",)])
def test_dead_letters_without_a_broker_say_so(arguments: tuple[str, ...]) -> None:
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"
    result = CliRunner().invoke(create_app(), ["dead-letters", *arguments], env={"BROKER_URL": url})
    assert result.exit_code == 2
    assert "does not answer" in result.stderr
    assert "secret" not in result.output


def test_an_empty_database_lacks_the_schema(doctor: Doctor, empty_database_url: str, broker_url: str) -> None:
    found = checks(doctor("--json", DATABASE_URL=empty_database_url, BROKER_URL=broker_url))

    assert found["database"]["ok"]
    assert found["database"]["found"].startswith("PostgreSQL 18")
    assert found["schema"]["ok"] is False
    assert "planq migrate" in found["schema"]["advice"]
    assert found["broker"]["ok"]
    names = ("planq.io", "planq.io.bulk", "planq.cpu", "planq.cpu.bulk")
    assert found["queues"]["found"] == ", ".join(f"{name}: 0 waiting" for name in names)
    assert found["workers"]["ok"] is None


def test_a_database_without_workers_says_which_pools_to_start(
    doctor: Doctor, database_url: str, valkey_url: str
) -> None:
    found = checks(doctor("--json", DATABASE_URL=database_url, BROKER_URL=valkey_url))

    assert found["schema"]["ok"]
    assert found["workers"]["found"] == "io: 0 live, cpu: 0 live"
    assert "`planq worker io` and `planq worker cpu`" in found["workers"]["advice"]
    assert found["tools"]["ok"] is False
    assert found["jobs"]["found"] == "none unfinished"
    assert found["channels"] == {**found["channels"], "ok": True, "advice": ""}
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO channels (tenant_id, name, kind, config, problem)"
            " VALUES ('default', 'telegram', 'telegram', '{}', 'Telegram refuses the token')"
        )
    told = checks(doctor("--json", DATABASE_URL=database_url, BROKER_URL=valkey_url))["channels"]
    assert (told["ok"], told["found"]) == (True, "telegram of the tenant default: Telegram refuses the token")
    assert "planq channels list" in told["advice"]


def test_events_of_another_server_are_told_with_the_page_that_helps(
    doctor: Doctor, database_url: str, valkey_url: str
) -> None:
    env = {"DATABASE_URL": database_url, "BROKER_URL": valkey_url}
    assert checks(doctor("--json", **env))["event log"]["ok"]
    with psycopg.connect(database_url) as connection:
        ended(connection, days=1, steps=1)
        connection.execute("UPDATE events SET xid = '9000000000000'")

    found = checks(doctor("--json", **env))["event log"]

    assert (found["ok"], found["found"]) == (False, "1 event of another server, which no stream gets")
    assert "docs/operations.md" in found["advice"]


def test_a_transaction_that_holds_events_back_is_told(doctor: Doctor, database_url: str, valkey_url: str) -> None:
    env = {"DATABASE_URL": database_url, "BROKER_URL": valkey_url}

    async def later() -> None:
        async with Database(database_url, max_connections=1) as database:
            await move_clock(database, timedelta(minutes=1))

    with psycopg.connect(database_url, application_name="night load") as holder:
        holder.execute("SELECT pg_current_xact_id()")
        asyncio.run(later())
        pid = holder.info.backend_pid
        found = checks(doctor("--json", **env))["event log"]

    assert not found["ok"]
    assert f"night load (process {pid}) in the database" in found["found"]
    assert f"pg_terminate_backend({pid})" in found["advice"]
    assert checks(doctor("--json", **env))["event log"]["ok"]


def test_each_worker_is_told_with_its_pool_and_a_loop_that_lags_is_a_warning(
    doctor: Doctor, database_url: str, valkey_url: str
) -> None:
    async def beat() -> None:
        database = Database(database_url, max_connections=1)
        await database.open()
        try:
            worker_registry = WorkerRegistry(database, timedelta(seconds=15))
            for name, pool, lag_ms, late in [("a", Pool.IO, 1_000, 1), ("b\x1b[31m", Pool.CPU, 1_001, 2)]:
                worker = new_id()
                await worker_registry.register(worker, name, [pool], [], 300, "0")
                lag = timedelta(milliseconds=lag_ms)
                assert await worker_registry.heartbeat(worker, lag, in_flight=7, late_outcomes=late)
        finally:
            await database.close()

    asyncio.run(beat())
    # They beat once, and are looked at twice: with the usual lease a busy machine would miss them the second time.
    env = {"DATABASE_URL": database_url, "BROKER_URL": valkey_url, "PLANQ_LEASE_SECONDS": "300"}

    found, told = checks(doctor("--json", **env)), doctor(**env).stdout.splitlines()

    well, late = found["worker a"], found["worker b\x1b[31m"]
    assert (well["ok"], well["advice"]) == (True, "")
    assert well["found"] == "io: loop lag 1000 ms, 7 of 300 in flight, 1 late outcome"
    assert (late["ok"], late["found"]) == (True, "cpu: loop lag 1001 ms, 7 of 300 in flight, 2 late outcomes")
    assert "held up" in late["advice"]
    (line,) = [line for line in told if "worker b" in line]
    assert line.startswith("warning ")
    assert "\x1b" not in line


def test_what_one_worker_lacks_and_another_has_is_told(doctor: Doctor, database_url: str, valkey_url: str) -> None:
    async def announce() -> None:
        async with Database(database_url, max_connections=1) as database:
            worker_registry = WorkerRegistry(database, timedelta(seconds=15))
            for name, pool, provides in [
                ("rich", Pool.IO, ["payloads", "model openai"]),
                ("poor", Pool.IO, ["payloads"]),
                ("other", Pool.CPU, []),
            ]:
                await worker_registry.register(new_id(), name, [pool], [], 1, "0", provides=provides)

    asyncio.run(announce())
    env = {"DATABASE_URL": database_url, "BROKER_URL": valkey_url, "PLANQ_LEASE_SECONDS": "300"}

    found = checks(doctor("--json", **env))

    assert (found["worker poor"]["ok"], found["worker poor"]["found"]) == (
        True,
        "lacks what other workers of its pool have: model openai",
    )
    assert "PLANQ_PAYLOADS" in found["worker poor"]["advice"]
    assert {found[f"worker {name}"]["advice"] for name in ("rich", "other")} == {""}


def test_objects_that_this_process_cannot_read_are_a_finding(
    doctor: Doctor, database_url: str, valkey_url: str, tmp_path: Path
) -> None:
    place = f"file://{tmp_path}/large"

    async def store() -> None:
        async with Database(database_url, max_connections=2) as database:
            await PayloadStore(database, open_objects(place)).put("default", b"x" * 100_000, b"null")

    asyncio.run(store())
    env = {"DATABASE_URL": database_url, "BROKER_URL": valkey_url}

    lost = checks(doctor("--json", **env))["objects"]
    well = checks(doctor("--json", **env, PLANQ_PAYLOADS=place))["objects"]

    assert (lost["ok"], well["ok"]) == (False, True)
    assert lost["found"] == "1 object with large outputs in an object store, and this process has no PLANQ_PAYLOADS"


def test_a_planq_that_is_well_is_all_ok(doctor: Doctor, stack: Stack, database_url: str, valkey_url: str) -> None:
    env = {"DATABASE_URL": database_url, "BROKER_URL": valkey_url, "PLANQ_URL": stack.url}

    told = doctor(**env)
    found = checks(doctor("--json", **env))

    assert told.exit_code == 0, told.stdout
    workers = {name: one for name, one in found.items() if name.startswith("worker ")}
    assert [one["found"].split(":")[0] for one in workers.values()] == ["cpu", "io"]
    # How far a loop lags is for the machine that the tests run on to say.
    well = [line for line in told.stdout.splitlines() if " worker " not in line and "→" not in line]
    assert all(line.startswith("ok ") for line in well)
    assert all(one["ok"] and (one["advice"] == "" or name in workers) for name, one in found.items())
    assert found["workers"]["found"] == "io: 1 live, cpu: 1 live"
    assert found["api"]["found"] == f"ready at {stack.url}"


def test_each_mcp_server_is_tried_and_a_command_that_is_missing_is_named(doctor: Doctor, tmp_path: Path) -> None:
    servers = Path(__file__).parents[1] / "tools" / "servers"
    file = tmp_path / "mcp.json"
    entries = {
        "elder": {"command": sys.executable, "args": [str(servers / "elder.py")]},
        "sloppy": {"command": sys.executable, "args": [str(servers / "sloppy.py")], "env": {"SLOPPY": "no_schema"}},
        "gone": {"command": "planq-no-such-command"},
        "away": {"url": f"http://127.0.0.1:{free_port()}/mcp"},
    }
    file.write_text(json.dumps({"mcpServers": entries}))

    found = checks(doctor("--json", PLANQ_MCP_FILE=str(file)))

    assert (found["MCP server elder"]["ok"], found["MCP server elder"]["found"]) == (True, "1 tools over stdio")
    sloppy = found["MCP server sloppy"]
    assert sloppy["ok"]
    assert sloppy["found"].startswith(
        "12 tools over stdio; 1 left out: mcp:sloppy (tool 'bare'): it is no valid tool"
    )
    assert sloppy["advice"] == "correct the tool in its server, or rename the server in mcp.json"
    assert found["MCP server gone"]["found"] == "the command 'planq-no-such-command' is not on the PATH"
    assert found["MCP server away"]["found"].startswith("not reached: ")
    assert not found["MCP server away"]["ok"]
