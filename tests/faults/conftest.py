"""Scenes for fault tests, several at once where a module asks for it: most of their time is waiting for leases."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from planq.deploy.local.valkey import EmbeddedValkey
from tests.faults.scene import MIGRATING, Scene, playing
from tests.support.forking import fork_server
from tests.support.servers import TestPostgres
from tests.support.tiers import rare

AT_ONCE = max(3, 8 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
"""Eight keep two cores busy, for a play computes for a quarter of its time; other test processes have plays too."""
BROKER_DATABASES = range(1, 16)

Stage = Callable[..., AbstractContextManager[Scene]]
Play = Callable[[Stage], None]


def as_play(play: Callable[..., None], *, is_rare: bool = False) -> object:
    """Return the parameter `play` of a test for a function of a `stage`, or of a `scene` on the session's servers.

    One that `is_rare` is played in a whole run alone.
    """

    @functools.wraps(play)
    def on_a_scene(stage: Stage) -> None:
        with stage() as scene:
            play(scene)

    takes_stage = next(iter(inspect.signature(play).parameters)) == "stage"
    value = (play.__name__, play if takes_stage else on_a_scene)
    return rare(value, id=play.__name__) if is_rare else pytest.param(value, id=play.__name__)


@pytest.fixture(scope="module")
def stage(postgres: TestPostgres, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """`stage()`: a context manager that gives a scene on a database and a broker database of its own.

    `broker_url` and `database_url` name servers of the caller's instead; `env` goes to all processes.
    """
    fork_server()  # in the main thread, not in the first play's
    folder = tmp_path_factory.mktemp("faults")
    numbers = itertools.count()
    databases: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in BROKER_DATABASES:
        databases.put(number)
    making = threading.Lock()

    @contextmanager
    def database() -> Iterator[str]:
        with making, MIGRATING:
            url = postgres.create_migrated()
        yield url
        with making:
            postgres.drop(url)

    @contextmanager
    def broker() -> Iterator[str]:
        number = databases.get()
        with redis.Redis(unix_socket_path=str(valkey.socket_path), db=number) as client:
            client.flushdb()
        yield valkey.url.replace("virtual_host=0", f"virtual_host={number}")
        databases.put(number)

    @contextmanager
    def make(
        broker_url: str | None = None, database_url: str | None = None, env: Mapping[str, str] | None = None
    ) -> Iterator[Scene]:
        with ExitStack() as servers:
            database_url = database_url or servers.enter_context(database())
            broker_url = broker_url or servers.enter_context(broker())
            with playing(Path(folder, str(next(numbers))), database_url, broker_url, env=env) as scene:
                yield scene

    return make


@pytest.fixture(scope="module")
def plays(request: pytest.FixtureRequest, stage: Stage) -> Iterator[dict[str, Future[None]]]:
    """The plays of this module that were selected, `AT_ONCE` of them under way at a time; each ends in its test.

    A test of the module has a parameter `play`: (name, function of a stage).
    """
    with under_way(request, stage) as futures:
        yield futures


@contextmanager
def under_way(request: pytest.FixtureRequest, *arguments: object) -> Iterator[dict[str, Future[None]]]:
    """Begin the plays of a module that were selected, with these arguments, `AT_ONCE` of them at a time."""
    items = [item for item in request.session.items if item.path == request.path]
    chosen = [item.callspec.params["play"] for item in items if "play" in getattr(item, "fixturenames", ())]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(play, *arguments) for name, play in chosen}
        pool.shutdown(cancel_futures=True)
