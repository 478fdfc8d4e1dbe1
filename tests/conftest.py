"""Fixtures for tests that need real servers. A server starts once per test process, when a test asks for it.

A missing service skips its tests on a laptop and fails them in CI (`CI=true`), where `.ci/run` has installed it.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import settings

from planq.deploy.local.valkey import EmbeddedValkey
from tests.support import parallel
from tests.support.lacking import require
from tests.support.long_tests import long_tests
from tests.support.rabbitmq import RabbitMQ, missing
from tests.support.servers import OTHER_SERVER, TestPostgres, server_folder
from tests.support.stack import Stack
from tests.support.tiers import examples

PATIENCE_SECONDS = 60.0
"""What an answer over HTTP may take here. httpx has 5 s, which a machine whose cores others have fails to keep."""

for _phase in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _phase, PATIENCE_SECONDS)


NOT_FAST = (
    "tests/unit/bench",
    "tests/unit/cli/test_closed_pipes.py",
    "tests/unit/setup",
    "tests/unit/test_house.py",
    "tests/unit/test_patterns.py",
    "tests/unit/worker",
)
"""Unit tests that start many processes, measure time, or belong to `make check`: `make test-fast` leaves them out."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know how much is run."""
    parser.addoption(
        "--whole", action="store_true", help="run the cells, examples and points that a quick run leaves out"
    )
    parser.addoption(
        "--fast", action="store_true", help="leave out what starts many processes or tries many examples"
    )
    parser.addoption("--long", action="store_true", help="run the tests of tests/data/long_tests.txt as well")


def pytest_configure(config: pytest.Config) -> None:
    """Hear SIGINT also where the tests were started by a shell in the background, and so does what they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    os.environ["TESTS_WHOLE"] = "1" if config.getoption("whole") else "0"  # for `tests.support.tiers.examples`
    # Without a deadline per example: the machine is shared, and a pause of another process is no fault of the code.
    most = 10 if config.getoption("fast") else examples(100)
    settings.register_profile("planq", deadline=None, max_examples=most)
    settings.load_profile("planq")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Say what `-n auto` is."""
    return parallel.workers(psutil.cpu_count() or 1, config.args, config.option.keyword)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> parallel.Scheduling:
    """Deal the tests out as `tests.support.parallel` says."""
    return parallel.Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what is imported out of every look of Python's collector: it takes a quarter of the collection itself.

    Each process of `make test` imports everything, and a later full look at it would take half a second each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a whole run runs, or is for the server that planq brings, and put long tests first.

    A long test runs where it was asked for by its file or its name.
    """
    unwanted = {"whole": not config.getoption("whole"), "newest_server": OTHER_SERVER is not None}
    markers = [name for name, is_unwanted in unwanted.items() if is_unwanted]
    everything = config.getoption("whole") or config.getoption("long")
    is_few = parallel.is_narrowed(config.args, config.option.keyword)
    long: frozenset[str] = frozenset() if everything or is_few else long_tests()
    left_out = [
        item for item in items if item.nodeid in long or any(item.get_closest_marker(name) for name in markers)
    ]
    if config.getoption("fast"):
        left_out += [item for item in items if item.nodeid.startswith(NOT_FAST) and item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    parallel.in_order(items)


@pytest.fixture(scope="session")
def whole(pytestconfig: pytest.Config) -> bool:
    """True where everything is to be run, as a release asks for, and not what shows most in a few minutes."""
    return bool(pytestconfig.getoption("whole"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[TestPostgres]:
    """The session's PostgreSQL server."""
    with server_folder() as folder:
        server = TestPostgres(folder)
        server.start()
        yield server
        server.stop()


@pytest.fixture
def empty_database_url(postgres: TestPostgres) -> Iterator[str]:
    """An empty database of the test's own."""
    url = postgres.create()
    yield url
    postgres.drop(url)


@pytest.fixture
def database_url(postgres: TestPostgres) -> Iterator[str]:
    """A database of the test's own with planq's schema."""
    url = postgres.create_migrated()
    yield url
    postgres.drop(url)


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """The session's Valkey server."""
    server = EmbeddedValkey(tmp_path_factory.mktemp("vk"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def valkey_url(valkey: EmbeddedValkey) -> Iterator[str]:
    """The broker URL of the session's Valkey, emptied before and after the test."""
    import redis

    with redis.Redis(unix_socket_path=str(valkey.socket_path)) as client:
        client.flushall()
        yield valkey.url
        client.flushall()


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """The session's RabbitMQ node."""
    require(missing())
    node = RabbitMQ(tmp_path_factory.mktemp("rq"))
    node.start()
    yield node
    node.end()


@pytest.fixture
def rabbitmq_url(rabbitmq: RabbitMQ) -> Iterator[str]:
    """A virtual host of the test's own."""
    url = rabbitmq.create()
    yield url
    rabbitmq.drop(url)


@pytest.fixture(params=["valkey", pytest.param("rabbitmq", marks=[pytest.mark.rabbitmq, pytest.mark.whole])])
def broker_url(request: pytest.FixtureRequest) -> str:
    """A broker of each kind in turn: the test runs once per kind, on RabbitMQ in a whole run.

    What differs between the two is tested in `integration/broker` and `faults/test_rabbitmq.py`.
    """
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def make_stack(request: pytest.FixtureRequest, tmp_path: Path, database_url: str) -> Iterator[Callable[..., Stack]]:
    """Make stacks, not yet started, stopped after the test: `make_stack(database_url, broker_url, env=…)`.

    It asks for the database so that the processes end before it is dropped. These are forked, unless the test is
    marked `fresh`.
    """
    stacks: list[Stack] = []
    fresh = request.node.get_closest_marker("fresh") is not None

    def make(database_url: str, broker_url: str, **options: dict[str, str]) -> Stack:
        folder = tmp_path / f"stack-{len(stacks)}"
        folder.mkdir()
        stacks.append(Stack(folder, database_url, broker_url, fresh=fresh, **options))
        return stacks[-1]

    yield make
    for stack in stacks:
        stack.end()


@pytest.fixture
def stack(make_stack: Callable[..., Stack], database_url: str, valkey_url: str) -> Stack:
    """API, one io worker and one cpu worker on an empty migrated database and Valkey, ready."""
    running = make_stack(database_url, valkey_url)
    running.start()
    return running
