"""The embedded PostgreSQL: it keeps its data, survives crashes, and never touches what is not its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import psutil
import psycopg
import pytest

from planq.deploy.local import identity
from planq.deploy.local.folder import LONGEST_SOCKET_PATH
from planq.deploy.local.postgres import EmbeddedPostgres
from planq.shared.platform.errors import DatabaseUnavailable, Misconfigured
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
as_root = os.geteuid() == 0

Make = Callable[[Path], EmbeddedPostgres]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[EmbeddedPostgres] = []

    def one(folder: Path) -> EmbeddedPostgres:
        made.append(EmbeddedPostgres(folder))
        return made[-1]

    yield one
    for server in made:
        server.stop()


def remember(server: EmbeddedPostgres, note: str) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (note text)")
        connection.execute("INSERT INTO notes VALUES (%s)", (note,))


def remembered(server: EmbeddedPostgres) -> list[str]:
    with psycopg.connect(server.url) as connection:
        return [row[0] for row in connection.execute("SELECT note FROM notes ORDER BY note")]


def test_it_answers_as_planq_in_utf8_over_its_socket_only(tmp_path: Path, make: Make) -> None:
    server = make(tmp_path / "pg")

    server.start()

    with psycopg.connect(server.url) as connection:
        assert connection.info.user == connection.info.dbname == "planq"
        for setting, expected in {
            "server_encoding": "UTF8",
            "listen_addresses": "",
            "fsync": "on",
            "synchronous_commit": "on",
            "TimeZone": "UTC",
        }.items():
            assert connection.execute("SELECT current_setting(%s)", (setting,)).fetchone() == (expected,)
    sockets = tmp_path / "pg" / "run"
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700


def test_a_restart_keeps_the_data_and_a_stop_leaves_no_process(tmp_path: Path, make: Make) -> None:
    server = make(tmp_path / "pg")
    server.start()
    pid = server.pid
    assert pid is not None
    remember(server, "kept")

    server.stop()

    assert not psutil.pid_exists(pid)
    assert server.pid is None
    server.start()
    assert remembered(server) == ["kept"]


def test_a_killed_server_recovers_what_was_committed(tmp_path: Path, make: Make) -> None:
    server = make(tmp_path / "pg")
    server.start()
    remember(server, "committed")
    assert server.pid is not None

    os.kill(server.pid, signal.SIGKILL)
    eventually(server.has_died)
    server.start()

    assert remembered(server) == ["committed"]


def test_a_stale_pid_file_that_names_another_process_is_removed_and_that_process_left_alone(
    tmp_path: Path, make: Make
) -> None:
    server = make(tmp_path / "pg")
    server.start()
    server.stop()
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pid_file = tmp_path / "pg" / "cluster" / "postmaster.pid"
    pid_file.write_text(f"{bystander.pid}\n{pid_file.parent}\n0\n5432\n\n\n")

    server.start()

    assert server.pid is not None
    assert bystander.poll() is None
    bystander.communicate(b"\n", timeout=10)


def test_a_second_server_on_the_same_folder_is_refused_and_the_first_goes_on(tmp_path: Path, make: Make) -> None:
    first = make(tmp_path / "pg")
    first.start()

    with pytest.raises(Misconfigured, match=f"already in use by process {os.getpid()}.*PLANQ_DATA"):
        make(tmp_path / "pg").start()

    remember(first, "still here")
    assert remembered(first) == ["still here"]


def test_data_of_another_version_is_refused_untouched(tmp_path: Path, make: Make) -> None:
    server = make(tmp_path / "pg")
    server.start()
    server.stop()
    version = tmp_path / "pg" / "cluster" / "PG_VERSION"
    version.write_text("15\n")

    with pytest.raises(Misconfigured, match="written by PostgreSQL 15, and planq brings PostgreSQL 18"):
        server.start()

    assert version.read_text() == "15\n"


def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "pg", options={"shared_buffers": "much"})

    with pytest.raises(DatabaseUnavailable, match='invalid value for parameter "shared_buffers"'):
        server.start()


def test_an_interrupted_creation_is_begun_again(tmp_path: Path, make: Make) -> None:
    half_made = tmp_path / "pg" / "cluster.new"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")

    server = make(tmp_path / "pg")
    server.start()

    remember(server, "whole")
    assert not half_made.exists()


def test_a_long_path_gets_a_short_private_socket_folder_and_keeps_it(tmp_path: Path, make: Make) -> None:
    deep = tmp_path / ("d" * LONGEST_SOCKET_PATH) / "pg"
    server = make(deep)
    server.start()
    first_url = server.url

    server.stop()
    server.start()

    assert server.url == first_url
    sockets = Path((deep / "run.path").read_text())
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    server.stop()
    shutil.rmtree(sockets)


def test_the_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom planq.deploy.local.postgres import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(Path(sys.argv[1]))\nserver.start()\nprint(server.pid, flush=True)\ninput()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "pg")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdout is not None
        server = psutil.Process(int(owner.stdout.readline()))
        family = [server, *server.children(recursive=True)]

        owner.kill()

        _, alive = psutil.wait_procs(family, timeout=60)
        assert alive == []


@pytest.mark.skipif(not as_root, reason="only root has to run the server as somebody else")
@pytest.mark.parametrize("parent_mode", [0o755, 0o700])
def test_as_root_it_runs_as_somebody_else_and_changes_nothing_outside_its_folder(
    parent_mode: int, make: Make, short_folder: Path
) -> None:
    short_folder.chmod(parent_mode)
    before = {path: (path.stat().st_mode, path.stat().st_uid) for path in (short_folder, *short_folder.parents)}
    chosen = identity.choose_identity(Path("/bin/ls"), _made(short_folder / "probe"))
    server = make(short_folder / "pg")

    server.start()

    remember(server, "written")
    assert remembered(server) == ["written"]
    assert chosen is not None
    assert chosen.way in ("reach", "namespace")
    after = {path: (path.stat().st_mode, path.stat().st_uid) for path in before}
    assert after == before


@pytest.mark.skipif(not as_root, reason="only root has to run the server as somebody else")
def test_as_root_below_a_closed_folder_without_user_namespaces_it_still_runs(
    make: Make, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_folder.chmod(0o700)
    every_candidate = list(identity._candidates())
    monkeypatch.setattr(
        identity, "_candidates", lambda: iter([one for one in every_candidate if one.way != "namespace"])
    )
    server = make(short_folder / "pg")

    server.start()

    remember(server, "written")
    assert server.pid is not None
    assert psutil.Process(server.pid).uids().effective != 0
    server.stop()
    # The same data under the other way: its files change hands and nothing is lost.
    monkeypatch.setattr(identity, "_candidates", lambda: iter([one for one in every_candidate if one.way != "reach"]))
    server.start()
    assert remembered(server) == ["written"]


INTRUDER = """
import os, socket, sys
pid, *places = sys.argv[1:]
found = []
for place in (*(f"/proc/{pid}/{name}" for name in ("root", "cwd/PG_VERSION", "environ", "mem")), *places):
    try:
        os.listdir(place) if os.path.isdir(place) else open(place, "rb").read(1)
        found.append(place)
    except OSError:
        pass
try:
    socket.socket(socket.AF_UNIX).connect(places[-1])
    found.append("connected")
except OSError:
    pass
print(found)
"""
"""Tries what another process of the same user may try."""


@pytest.mark.skipif(not as_root, reason="only root has to run the server as somebody else")
@pytest.mark.parametrize("way", ["reach", "namespace"])
@pytest.mark.parametrize("is_deep", [False, True])
@pytest.mark.parametrize("is_old", [False, True])
def test_no_other_process_of_the_user_nobody_comes_to_the_data(
    make: Make, short_folder: Path, monkeypatch: pytest.MonkeyPatch, way: str, is_deep: bool, is_old: bool
) -> None:
    """The server ran as nobody without more, and each process of nobody was let in as the superuser."""
    short_folder.chmod(0o755)
    every_candidate = list(identity._candidates())
    monkeypatch.setattr(identity, "_candidates", lambda: iter([one for one in every_candidate if one.way == way]))
    nobody = pwd.getpwnam("nobody")
    home = short_folder / ("d" * LONGEST_SOCKET_PATH if is_deep else "pg")
    server = make(home)
    server.start()
    remember(server, "written")
    if is_old:  # as an earlier release left it: all of it belongs to nobody
        server.stop()
        for path in (home, *home.rglob("*")):
            os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
        server.start()

    sockets = Path(unquote(server.url.partition("host=")[2].partition("&")[0]))
    places = [home, home / "cluster", home / "cluster" / "PG_VERSION", sockets, sockets / ".s.PGSQL.5432"]
    intruder = subprocess.run(
        [os.path.realpath(sys.executable), "-I", "-S", "-c", INTRUDER, str(server.pid), *map(str, places)],
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )

    assert intruder.stdout.strip() == "[]"
    assert "/dev/shm/PostgreSQL" not in Path(f"/proc/{server.pid}/maps").read_text()
    assert remembered(server) == ["written"]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose parents are open to everybody, unlike pytest's own."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="planq-test-") as folder:
        yield Path(folder)
