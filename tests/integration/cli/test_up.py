"""`planq up` as a process: it starts, watches, restarts, resumes, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from planq.api.cli import runtime
from planq.shared.kernel import schema_version as schema
from tests.support.living import command_line
from tests.support.ports import free_port
from tests.support.tiers import rare
from tests.support.torn import FATAL
from tests.support.waiting import eventually

PATIENCE = 240
"""Far more seconds than any start or end here takes, on a machine that is busy with other tests."""

GRANDCHILD = "import signal; signal.pause()"
ROOT = Path(__file__).parents[3]


class Up:
    """A running `planq up` with stand-ins for the API and the worker."""

    def __init__(self, folder: Path, port: int, *options: str, **env: str) -> None:
        self.folder = folder
        self.output = folder / "output.txt"
        self.port = port
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PLANQ_") and not k.endswith("_URL")}
        command = [sys.executable, "-m", "tests.support.fake_up", "up", "--no-flower"]
        with self.output.open("ab") as out:
            self.process = psutil.Popen(
                [*command, "--port", str(port), "--data", str(folder / "data"), *options],
                cwd=ROOT,
                env=kept | env,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def text(self) -> str:
        return self.output.read_text()

    def wait_up(self, times: int = 1) -> None:
        eventually(lambda: self.text().count("planq is up") == times, 60, what="planq is up")

    def family(self) -> list[psutil.Process]:
        return self.process.children(recursive=True)

    def named(self, part: str) -> psutil.Process:
        found = [one for one in self.family() if part in " ".join(command_line(one))]
        assert found, f"no process of {part}"  # it may not have become its program yet: `eventually` asks again
        return found[0]

    def leave(self, number: signal.Signals = signal.SIGINT) -> int:
        family = self.family()
        self.process.send_signal(number)
        code: int = self.process.wait(PATIENCE)
        assert alive(family) == []
        return code


def alive(family: list[psutil.Process]) -> list[list[str]]:
    """Return the command lines of those that still run; one that only waits to be reaped by init does not."""
    _, running = psutil.wait_procs(family, timeout=2)
    return [line for one in running if (line := command_line(one))]


@contextmanager
def planq_up(folder: Path, *options: str, **env: str) -> Iterator[Up]:
    running = Up(folder, free_port(), *options, **env)
    try:
        yield running
    finally:
        if running.process.is_running():
            running.process.kill()
            running.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One that outlives what is done beside it and to its parts, and stops in order after all of that."""
    folder = tmp_path_factory.mktemp("up")
    with planq_up(folder) as running:
        running.wait_up()
        yield running
        assert running.leave() == 0
    assert runtime.find(folder / "data") is None


@pytest.mark.parametrize("number", [rare(signal.SIGINT), signal.SIGTERM])
def test_it_says_when_it_is_healthy_and_one_signal_stops_every_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    with planq_up(tmp_path) as running:
        running.wait_up()
        assert httpx.get(f"http://127.0.0.1:{running.port}/readyz").status_code == 200
        assert len(running.family()) >= 5  # two servers with children, API, worker with a child

        assert running.leave(number) == 0

    assert "healthy in" in running.text()
    assert "nothing of planq is left running" in running.text()


@pytest.mark.whole
def test_a_second_run_resumes_on_the_same_data(tmp_path: Path) -> None:
    for run in (1, 2):
        with planq_up(tmp_path) as running:
            running.wait_up(run)
            assert running.leave() == 0

    # Migrated once: the second run found nothing to do.
    assert "migrated the schema from nothing" in (tmp_path / "data/logs/migrate.log").read_text()


@pytest.mark.whole  # `integration/embedded/test_valkey.py` tears every file
def test_a_broker_file_that_a_power_cut_tore_is_set_aside_with_a_line(tmp_path: Path) -> None:
    data = tmp_path / "data" / "valkey" / "data"
    with planq_up(tmp_path) as running:
        running.wait_up()
        assert running.leave() == 0
    FATAL["100 zero bytes at the end"](data)

    with planq_up(tmp_path) as running:
        running.wait_up(2)
        # And once more while it runs.
        valkey = running.named("valkey-server")
        valkey.suspend()
        FATAL["manifest empty"](data)
        valkey.kill()
        eventually(lambda: running.text().count("valkey was started again") == 2, 60, what="started twice")
        eventually(lambda: running.named("valkey-server").pid != valkey.pid, 60)
        assert running.leave() == 0

    assert running.text().count("is set aside in") == 2


def test_commands_beside_it_find_its_servers_as_long_as_it_runs(lasting: Up) -> None:
    found = runtime.find(lasting.folder / "data")

    assert found is not None
    assert (found.pid, found.api_url) == (lasting.process.pid, f"http://127.0.0.1:{lasting.port}")
    with psycopg.connect(found.database_url) as connection:
        assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (0,)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("api", "http.server"),
        ("worker-io", "signal.pause"),
        ("postgres", "bin/postgres"),
        ("valkey", "valkey-server"),
    ],
)
def test_a_part_that_is_killed_is_said_and_started_again(lasting: Up, name: str, part: str) -> None:
    said = [f"{name} {what}" for what in ("ended unexpectedly", "was started again")]
    victim = lasting.named(part)

    victim.kill()

    eventually(lambda: all(words in lasting.text() for words in said), 60, what=" and ".join(said))
    eventually(lambda: lasting.named(part).pid != victim.pid, 60)


def test_a_killed_supervisor_takes_every_process_with_it(tmp_path: Path) -> None:
    with planq_up(tmp_path) as running:
        running.wait_up()
        family = running.family()

        running.process.kill()

        assert eventually(lambda: [one for one in alive(family) if GRANDCHILD not in one] == [], 60)
        for grandchild in family:  # the stand-in does not pass its signal on; a real worker does
            if grandchild.is_running():
                grandchild.kill()


def test_a_second_interrupt_hastens_a_stubborn_worker(tmp_path: Path) -> None:
    with planq_up(tmp_path, FAKE_WORKER="stubborn") as running:
        running.wait_up()
        family = running.family()

        running.process.send_signal(signal.SIGINT)
        eventually(lambda: "stopping" in running.text())
        running.process.send_signal(signal.SIGINT)

        assert running.process.wait(PATIENCE) == 0
        assert alive(family) == []
    assert "worker-io did not stop" in running.text()


def test_a_part_that_never_gets_well_ends_the_start_with_its_log(tmp_path: Path) -> None:
    logs = tmp_path / "data" / "logs"
    logs.mkdir(parents=True)
    for name in ("api", "worker-io"):
        (logs / f"{name}.log").write_text("a fault of yesterday\n")

    with planq_up(tmp_path, FAKE_API="dies") as running:
        assert running.process.wait(PATIENCE) == 2

    assert "the API has a bad day" in running.text()
    assert "yesterday" not in running.text()
    assert "not healthy" in running.text()
    assert "nothing of planq is left running" in running.text()


def test_a_busy_port_is_named_with_its_option_and_nothing_is_started(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        running = Up(tmp_path, port)

        assert running.process.wait(PATIENCE) == 2
    assert f"port {port}" in running.text()
    assert "--port or PLANQ_PORT" in running.text()
    assert not (tmp_path / "data" / "postgres").exists()


def test_a_bad_setting_is_named_before_any_part_begins(tmp_path: Path) -> None:
    with planq_up(tmp_path, PLANQ_LEASE_SECONDS="-1") as running:
        assert running.process.wait(PATIENCE) == 2

    assert "bad settings: PLANQ_LEASE_SECONDS" in running.text()
    assert "ended unexpectedly" not in running.text()
    assert not (tmp_path / "data" / "logs" / "api.log").exists()
    assert "nothing of planq is left running" in running.text()


def test_a_part_that_is_misconfigured_ends_the_start_at_once_with_what_it_said(tmp_path: Path) -> None:
    with planq_up(tmp_path, FAKE_WORKER="misconfigured") as running:
        assert running.process.wait(PATIENCE) == 2

    assert "planq cannot start as it is configured" in running.text()
    assert "PLANQ_TOOLS names nothing" in running.text()
    assert "was started again" not in running.text()
    assert "healthy" not in running.text()


@pytest.mark.parametrize("below", ["", "/below"])
def test_a_data_folder_that_is_a_file_is_said(tmp_path: Path, below: str) -> None:
    (tmp_path / "data").write_text("")

    running = Up(tmp_path, free_port(), PLANQ_DATA=f"{tmp_path}/data{below}")

    assert running.process.wait(PATIENCE) == 2
    assert f"{tmp_path}/data is a file, and planq needs a folder there" in running.text()
    assert "Traceback" not in running.text()


@pytest.mark.whole
def test_data_of_a_newer_release_are_left_as_they_are(tmp_path: Path) -> None:
    with planq_up(tmp_path) as running:
        running.wait_up()
        found = runtime.find(tmp_path / "data")
        assert found is not None
        with psycopg.connect(found.database_url) as connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999'")
        assert running.leave() == 0

    with planq_up(tmp_path) as running:
        assert running.process.wait(PATIENCE) == 2

    assert f"the database has schema 9999+{schema.digest()} of a newer release" in running.text()
    assert "Traceback" not in running.text()


def test_two_at_once_on_the_same_data_are_refused(lasting: Up) -> None:
    second = Up(lasting.folder, free_port())  # it writes below what the first one wrote

    assert second.process.wait(PATIENCE) == 2
    assert f"already in use by process {lasting.process.pid}" in second.text()


def test_nothing_is_written_to_a_database_of_somebody_before_they_agree(
    tmp_path: Path, empty_database_url: str
) -> None:
    with planq_up(tmp_path, DATABASE_URL=empty_database_url) as running:
        assert running.process.wait(PATIENCE) == 2
    assert "nothing was changed there; run `planq migrate`, or `planq up --migrate`" in running.text()
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT to_regnamespace('planq')").fetchone() == (None,)

    with planq_up(tmp_path, "--migrate", DATABASE_URL=empty_database_url) as running:
        running.wait_up()
        assert running.leave() == 0
    assert not (tmp_path / "data" / "postgres").exists()


def test_a_database_that_does_not_answer_is_said(tmp_path: Path) -> None:
    url = f"postgresql://nobody:secret@127.0.0.1:{free_port()}/none"

    with planq_up(tmp_path, DATABASE_URL=url) as running:
        assert running.process.wait(PATIENCE) == 2

    assert "cannot read the database's schema version" in running.text()
    assert not (tmp_path / "data" / "postgres").exists()
