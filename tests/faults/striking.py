"""The failures of the matrix: each brings a worker to a point, strikes there, and sees everything come out right."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import redis
from psycopg.conninfo import conninfo_to_dict

from planq.deploy.local.valkey import EmbeddedValkey
from tests.faults.conftest import Stage
from tests.faults.scene import MIGRATING, MIXED, SHORT_LEASE, Scene
from tests.support.proxy import TcpProxy
from tests.support.servers import TestPostgres, server_folder
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Struck:
    """A worker that stands still at a point, in the middle of the mixed job."""

    scene: Scene
    job_id: UUID
    name: str
    folder: Path

    def go_on(self) -> None:
        """Let the call that was held go on."""
        (self.folder / "go").touch()

    def comes_out_right(self) -> None:
        """See the job end as it should, and then another one: nobody has become deaf."""
        self.scene.mixed_comes_out_right(self.job_id)
        again = self.scene.submit(*[("fault_note", {"text": "a"})] * 3)
        self.scene.completes(again, *["<a>"] * 3)
        self.scene.sound()


def standing_at(scene: Scene, point: str, **env: str) -> Struck:
    """Start a worker and wait until it stands still at a point of the mixed job."""
    job_id = scene.submit(*MIXED)
    name, folder = scene.held(point, **env)
    scene.stands(job_id, name, folder)
    return Struck(scene, job_id, name, folder)


# The worker


def killed(stage: Stage, point: str) -> None:
    """SIGKILL: nothing is given back; another worker on the machine sees that it has gone, and goes on."""
    with stage() as scene:
        struck = standing_at(scene, point)
        scene.stack.kill(struck.name)
        scene.worker()
        struck.comes_out_right()


def killed_elsewhere(stage: Stage, point: str) -> None:
    """SIGKILL of a worker that does not tell where it lives: its lease ends before another one goes on."""
    with stage(env=SHORT_LEASE) as scene:
        struck = standing_at(scene, point, PLANQ_DETECT_DEAD_PEERS="false")
        scene.stack.kill(struck.name)
        scene.worker()
        struck.comes_out_right()


def terminated(stage: Stage, point: str) -> None:
    """SIGTERM: what was begun is given back, so that nobody waits for the lease and nothing counts as a loss."""
    with stage(env={"PLANQ_DRAIN_SECONDS": "0"}) as scene:
        struck = standing_at(scene, point)
        scene.signal(struck.name, signal.SIGTERM)
        if "claim" in point:
            struck.go_on()  # the answer to a claim is waited for, so that it can be given back
        scene.dies(struck.name, 0)
        scene.worker()
        struck.comes_out_right()
        assert scene.read("SELECT 1 FROM steps WHERE worker_losses > 0") == []
        assert scene.read("SELECT 1 FROM jobs WHERE stage_losses > 0") == []


def stopped(stage: Stage, point: str) -> None:
    """SIGSTOP past the lease, then SIGCONT: another worker has gone on, and the late result changes nothing."""
    with stage(env=SHORT_LEASE) as scene:
        struck = standing_at(scene, point)
        scene.signal(struck.name, signal.SIGSTOP)
        other = scene.worker()
        scene.mixed_comes_out_right(struck.job_id)
        before = _result(scene, struck.job_id)
        scene.signal(struck.name, signal.SIGCONT)
        struck.go_on()
        scene.stack.kill(other)
        # The worker that was away takes work again, with what it then had in hand behind it.
        struck.comes_out_right()
        assert _result(scene, struck.job_id) == before


def _result(scene: Scene, job_id: UUID) -> object:
    """Return what a late outcome must not change; what a late model call cost is added, for it was spent."""
    job, steps = scene.job(job_id)
    return [job[name] for name in ("status", "answer", "error", "finished_at", "plan_body")], steps


def starved(stage: Stage, point: str) -> None:
    """The kernel kills the process of the `cpu` pool that is in the operation, for its memory; its parent lives."""
    with stage() as scene:
        (scene.folder / "enough").touch()
        scene.worker()
        name, folder = scene.held(point, "cpu")
        job_id = scene.submit(("fault_crunch", {"until": "enough"}), ("fault_note", {"text": "b"}))
        scene.stands(job_id, name, folder)
        scene.kill_child(name)
        # What takes its place is forked from the same parent, with the same point armed.
        (folder / "go").touch()
        steps = scene.completes(job_id, "<b>")
        assert steps[0]["attempt"] in (1, 2)
        again = scene.submit(("fault_crunch", {"until": "enough"}))
        scene.completes(again, "attempt 1")
        scene.sound()


# The broker


@contextmanager
def own_valkey() -> Iterator[EmbeddedValkey]:
    """A Valkey server that may be maltreated."""
    with tempfile.TemporaryDirectory(prefix="planq-valkey-") as folder:
        server = EmbeddedValkey(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def emptied(stage: Stage, point: str) -> None:
    """FLUSHALL: the queue, what is unacknowledged and Celery's bindings are gone."""
    with own_valkey() as valkey, stage(broker_url=valkey.url) as scene:
        struck = standing_at(scene, point)
        with redis.Redis(unix_socket_path=str(valkey.socket_path)) as client:
            client.flushall()
        struck.go_on()
        struck.comes_out_right()


def disconnected(stage: Stage, point: str) -> None:
    """CLIENT KILL of every connection to the broker."""
    with own_valkey() as valkey, stage(broker_url=valkey.url) as scene:
        struck = standing_at(scene, point)
        with redis.Redis(unix_socket_path=str(valkey.socket_path)) as client:
            count = sum(client.execute_command("CLIENT", "KILL", "TYPE", kind) for kind in ("normal", "pubsub"))
            assert count >= 2, "there were connections to kill"
        struck.go_on()
        struck.comes_out_right()


def broker_restarted(stage: Stage, point: str) -> None:
    """The broker comes back with an empty store, after the call that was held has met its absence."""
    with own_valkey() as valkey, stage(broker_url=valkey.url) as scene:
        struck = standing_at(scene, point)
        valkey.stop()
        shutil.rmtree(valkey.log.parent / "data")
        struck.go_on()
        valkey.start()
        struck.comes_out_right()


def broker_silent(stage: Stage, point: str) -> None:
    """Half-open connections to the broker: a worker whose own are sound goes on."""
    with own_valkey() as valkey, TcpProxy(valkey.socket_path) as proxy, stage(broker_url=valkey.url) as scene:
        struck = standing_at(scene, point, BROKER_URL=f"redis://127.0.0.1:{proxy.port}/0")
        assert proxy.freeze() >= 2, "there were connections to freeze"
        struck.go_on()
        scene.worker()
        struck.comes_out_right()


# The database


@functools.cache
def _original() -> TestPostgres:
    """A stopped server with planq's schema, of which others are made; call with `MIGRATING` held."""
    kept = ExitStack()
    atexit.register(kept.close)
    server = TestPostgres(kept.enter_context(server_folder()))
    server.start()
    server.drop(server.create_migrated())
    server.stop()
    return server


@contextmanager
def own_postgres() -> Iterator[tuple[TestPostgres, str]]:
    """A PostgreSQL server that may be maltreated, and the URL of a database on it."""
    with server_folder() as folder:
        with MIGRATING:
            original = _original()
        server = original.copy_to(folder)
        server.start()
        try:
            yield server, server.create_migrated()
        finally:
            server.stop()


def sessions_ended(stage: Stage, point: str) -> None:
    """pg_terminate_backend of every session but the one that says so."""
    with stage() as scene:
        struck = standing_at(scene, point)
        ended = scene.read(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        assert len(ended) >= 3, "there were sessions to end"
        struck.go_on()
        struck.comes_out_right()


def crash(server: TestPostgres) -> None:
    """Stop PostgreSQL as `pg_ctl stop -m immediate` does: no checkpoint, crash recovery at the next start."""
    pid = server.server.pid
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    eventually(server.server.has_died, 60, what="PostgreSQL has ended")


def database_restarted(stage: Stage, point: str) -> None:
    """PostgreSQL crashes and comes back, after the call that was held has met its absence."""
    with own_postgres() as (postgres, url), stage(database_url=url) as scene:
        struck = standing_at(scene, point)
        crash(postgres)
        struck.go_on()
        postgres.start()
        struck.comes_out_right()


def database_silent(stage: Stage, point: str) -> None:
    """Half-open connections to the database: another worker goes on, and this one is back with the network."""
    with stage() as scene:
        server = conninfo_to_dict(scene.database_url)
        with TcpProxy(Path(str(server["host"]), f".s.PGSQL.{server['port']}")) as proxy:
            url = f"postgresql://{server['user']}@127.0.0.1:{proxy.port}/{server['dbname']}"
            struck = standing_at(scene, point, DATABASE_URL=url)
            assert proxy.freeze() >= 3, "there were connections to freeze"
            struck.go_on()
            other = scene.worker()
            scene.mixed_comes_out_right(struck.job_id)
            # The network is back, and with it the news that the old connections are gone.
            proxy.reset_frozen()
            scene.stack.kill(other)
            struck.comes_out_right()
