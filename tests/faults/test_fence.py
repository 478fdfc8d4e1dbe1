"""A worker that lost its lease does nothing any more before anybody else may do it: cut off, or standing still.

The tools act late in their calls, when the test says so: by then another attempt has begun. Without a fence the first
attempt acts all the same, and what must happen once happens twice.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from psycopg.conninfo import conninfo_to_dict

from planq.shared.kernel.states import Settlement
from planq.shared.subjects.jobs.store import Verdict
from tests.faults.conftest import Play, Stage
from tests.faults.scene import PATIENCE, Scene
from tests.support.living import is_alive
from tests.support.proxy import TcpProxy
from tests.support.stack import step_processes
from tests.support.tiers import rare
from tests.support.waiting import eventually

FINDS_OUT = {
    "async": ("io", "fault_late_book"),
    "a thread": ("io", "fault_thread_book"),
    "a process": ("cpu", "fault_cpu_book"),
    "a blocked loop": ("io", "fault_block_book"),
}
ELSEWHERE = {"PLANQ_DETECT_DEAD_PEERS": "false"}
LEASE = {"PLANQ_LEASE_SECONDS": "4", "PLANQ_HEARTBEAT_SECONDS": "0.5"}
"""Long enough for a worker that nothing has struck, on a busy machine."""

NO_WATCH = {"PLANQ_FREEZE_SECONDS": "0"}
"""A tool that blocks its loop is not killed for that here."""


@contextmanager
def proxied(scene: Scene) -> Iterator[tuple[TcpProxy, dict[str, str]]]:
    """A proxy before the scene's database, and the environment of a worker that goes through it."""
    server = conninfo_to_dict(scene.database_url)
    with TcpProxy(Path(str(server["host"]), f".s.PGSQL.{server['port']}")) as proxy:
        url = f"postgresql://{server['user']}@127.0.0.1:{proxy.port}/{server['dbname']}"
        yield proxy, {"DATABASE_URL": url}


@dataclass(frozen=True)
class Worker:
    """A worker's process group, and the processes in it that call tools."""

    pid: int
    callers: list[psutil.Process]

    @property
    def can_act(self) -> bool:
        """True while a process lives that calls tools, be it stopped."""
        return any(map(is_alive, self.callers))


def begun(scene: Scene, pool: str, tool: str, env: dict[str, str], start: Callable[..., str]) -> tuple[Worker, UUID]:
    """Start a worker of a pool by `start` and wait until the tool is called in it."""
    if pool == "cpu":
        scene.worker()
    pid = scene.pid(start(pool, **env))
    job_id = scene.submit((tool, {"text": "a"}))
    eventually(lambda: scene.began(job_id, 1), PATIENCE, what="the first attempt runs")
    if start == scene.guarded:
        [pid] = [one.pid for one in psutil.Process(pid).children() if "planq.worker" in one.cmdline()]
    process = psutil.Process(pid)
    return Worker(pid, step_processes(pid) if pool == "cpu" else [process]), job_id


@contextmanager
def cut_off(stage: Stage, pool: str, tool: str, **env: str) -> Iterator[tuple[Scene, Worker, UUID]]:
    """A worker in the middle of a call, whose connections to the database lead nowhere from now on."""
    with stage(env=LEASE) as scene, proxied(scene) as (proxy, through):
        worker, job_id = begun(scene, pool, tool, {**through, **env}, scene.worker)
        proxy.accept(False)
        assert proxy.freeze() >= 2, "there were connections to freeze"
        yield scene, worker, job_id


@contextmanager
def frozen(stage: Stage, pool: str, tool: str, **env: str) -> Iterator[tuple[Scene, Worker, UUID]]:
    """A worker in the middle of a call that is stopped with all its processes; its guard kills it."""
    with stage(env=LEASE) as scene:
        worker, job_id = begun(scene, pool, tool, {**NO_WATCH, **env}, scene.guarded)
        os.killpg(worker.pid, signal.SIGSTOP)
        eventually(lambda: not worker.can_act, PATIENCE, what="the guard ends it when its lease is over")
        yield scene, worker, job_id


def goes_on(scene: Scene, worker: Worker, job_id: UUID) -> None:
    """Let the old worker wake up, and its attempt act if it still can; wait until it is over."""
    (scene.folder / "act-1").touch()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGCONT)
    eventually(lambda: scene.is_over(job_id, 1) or not worker.can_act, PATIENCE, what="the first attempt is over")


Struck = Callable[..., AbstractContextManager[tuple[Scene, Worker, UUID]]]


def found_out(struck: Struck, pool: str, tool: str, env: dict[str, str], stage: Stage) -> None:
    """The tool's `find_out` says that it has not happened, and the next attempt does it."""
    with struck(stage, pool, tool, **env) as (scene, worker, job_id):
        scene.worker(pool)
        eventually(lambda: scene.began(job_id, 2), PATIENCE, what="the second attempt runs")
        goes_on(scene, worker, job_id)
        (scene.folder / "act-2").touch()
        scene.completes(job_id, "<a>")
        assert scene.paid()[f"{job_id}/0"] == 1
        scene.sound()


def asked(struck: Struck, env: dict[str, str], stage: Stage) -> None:
    """A person says that it has not happened, and the next attempt does it."""
    with struck(stage, "io", "fault_late_charge", **env) as (scene, worker, job_id):
        scene.worker()
        eventually(lambda: scene.read("SELECT 1 FROM jobs WHERE open_questions > 0"), PATIENCE, what="it asks")
        verdict = Verdict(Settlement.DID_NOT_HAPPEN)
        settled = scene.caller.do(scene.caller.requests.settle("default", job_id, 0, verdict))
        assert settled.applied
        scene.caller.publisher.publish_soon(settled.wakes)
        eventually(lambda: scene.began(job_id, 2), PATIENCE, what="the second attempt runs")
        goes_on(scene, worker, job_id)
        (scene.folder / "act-2").touch()
        scene.completes(job_id, "<a>")
        assert scene.paid()[f"{job_id}/0"] == 1
        scene.sound()


def given_up(struck: Struck, env: dict[str, str], stage: Stage) -> None:
    """Nobody repeats it; nor does it happen after its step has failed."""
    with struck(stage, "io", "fault_late_pay", **env) as (scene, worker, job_id):
        scene.worker()
        _, steps = scene.ends(job_id)
        assert (steps[0]["status"], steps[0]["error"]["code"]) == ("failed", "outcome_unknown")
        goes_on(scene, worker, job_id)
        assert scene.paid()[f"{job_id}/0"] == 0
        scene.sound()


def plays() -> Iterator[object]:
    for how, struck in {"cut off": cut_off, "frozen": frozen}.items():
        for kind, (pool, tool) in FINDS_OUT.items():
            yield play_of(f"find_out in {kind}, {how}", partial(found_out, struck, pool, tool, {}))
        yield play_of(f"find_out, {how} elsewhere", partial(found_out, struck, "io", "fault_late_book", ELSEWHERE))
        yield play_of(f"ask, {how}", partial(asked, struck, {}))
        yield play_of(f"fail, {how}", partial(given_up, struck, {}))


RARE = {
    *("find_out in a thread, cut off", "find_out in a process, cut off", "find_out in a blocked loop, frozen"),
    *("find_out in a thread, frozen", "find_out, cut off elsewhere", "ask, frozen", "fail, cut off"),
}
"""Every kind of tool is cut off or frozen, and each of both ways is tried with what follows it."""


def play_of(name: str, play: Play) -> object:
    return rare((name, play), id=name) if name in RARE else pytest.param((name, play), id=name)


@pytest.mark.parametrize("play", list(plays()))
def test_what_must_happen_once_happens_once(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
