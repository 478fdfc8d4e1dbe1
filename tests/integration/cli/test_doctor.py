"""`planq doctor`: against nothing, against servers without planq, and against a planq that is well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shared.cli.main import create_app
from shared.domain.states import Lane
from shared.store.database import Database
from shared.store.fleet import Fleet
from shared.store.ids import new_id
from tests.support.ports import free_port
from tests.support.stack import Stack

Doctor = Callable[..., Result]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
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


@pytest.mark.parametrize("url", ["nonsense://x", "redis+nonsense://", "http://127.0.0.1"])
def test_a_broker_of_an_unknown_kind_is_a_finding(doctor: Doctor, url: str) -> None:
    found = checks(doctor("--json", BROKER_URL=url))

    assert found["broker"]["ok"] is False
    assert "expected redis://" in found["broker"]["found"]


def test_bad_settings_are_named_and_the_rest_is_not_looked_at(doctor: Doctor) -> None:
    found = checks(doctor("--json", PLANQ_IO_CONCURRENCY="many"))

    assert "IO_CONCURRENCY" in found["settings"]["found"].upper()
    assert found["database"]["ok"] is None


def test_the_place_of_large_outputs_is_written_to_and_read(doctor: Doctor, tmp_path: Path) -> None:
    folder = tmp_path / "large"

    found = checks(doctor("--json", PLANQ_PAYLOADS=f"file://{folder}"))["large outputs"]
    assert (found["ok"], [path for path in folder.rglob("*") if path.is_file()]) == (True, [])

    for bad in ("s3://no-such-bucket/x", "gopher://x", "file:///proc/none"):
        found = checks(doctor("--json", PLANQ_PAYLOADS=bad, AWS_ENDPOINT_URL=f"http://127.0.0.1:{free_port()}"))
        assert found["large outputs"]["ok"] is False
        assert "PLANQ_PAYLOADS" in found["large outputs"]["found"]


def test_an_empty_database_lacks_the_schema(doctor: Doctor, empty_database_url: str, broker_url: str) -> None:
    found = checks(doctor("--json", DATABASE_URL=empty_database_url, BROKER_URL=broker_url))

    assert found["database"]["ok"]
    assert found["database"]["found"].startswith("PostgreSQL 18")
    assert found["schema"]["ok"] is False
    assert "planq migrate" in found["schema"]["advice"]
    assert found["broker"]["ok"]
    assert found["queues"]["found"] == "planq.io: 0 waiting, planq.cpu: 0 waiting"
    assert found["workers"]["ok"] is None


def test_a_database_without_workers_says_which_lanes_to_start(
    doctor: Doctor, database_url: str, valkey_url: str
) -> None:
    found = checks(doctor("--json", DATABASE_URL=database_url, BROKER_URL=valkey_url))

    assert found["schema"]["ok"]
    assert found["workers"]["found"] == "io: 0 live, cpu: 0 live"
    assert "`planq worker io` and `planq worker cpu`" in found["workers"]["advice"]
    assert found["tools"]["ok"] is False
    assert found["jobs"]["found"] == "none unfinished"


def test_each_worker_is_told_with_its_lane_and_a_loop_that_lags_is_a_warning(
    doctor: Doctor, database_url: str, valkey_url: str
) -> None:
    async def beat() -> None:
        database = Database(database_url, max_connections=1)
        await database.open()
        try:
            fleet = Fleet(database, timedelta(seconds=15))
            for name, lane, lag_ms, late in [("a", Lane.IO, 1_000, 1), ("b\x1b[31m", Lane.CPU, 1_001, 2)]:
                worker = new_id()
                await fleet.register(worker, name, [lane], [], 300, "0")
                lag = timedelta(milliseconds=lag_ms)
                assert await fleet.heartbeat(worker, lag, in_flight=7, late_outcomes=late)
        finally:
            await database.close()

    asyncio.run(beat())
    env = {"DATABASE_URL": database_url, "BROKER_URL": valkey_url}

    found, told = checks(doctor("--json", **env)), doctor(**env).stdout.splitlines()

    well, late = found["worker a"], found["worker b\x1b[31m"]
    assert (well["ok"], well["advice"]) == (True, "")
    assert well["found"] == "io: loop lag 1000 ms, 7 of 300 in flight, 1 late outcome"
    assert (late["ok"], late["found"]) == (True, "cpu: loop lag 1001 ms, 7 of 300 in flight, 2 late outcomes")
    assert "held up" in late["advice"]
    (line,) = [line for line in told if "worker b" in line]
    assert line.startswith("warning ")
    assert "\x1b" not in line


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
