"""The pytest plugin: `planq_server`, a whole planq, and `planq_cassette`. It imports nothing until they are used.

pytest finds it by the entry point `pytest11`. A test's `conftest.py` sets what the server needs in addition to tools
by a fixture `planq_settings` of its own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from planq import Client
    from planq.testing.cassettes import Cassette

_START_SECONDS = 180.0
_STOP_SECONDS = 60.0
_UP = "planq is up"


@dataclass(frozen=True, slots=True)
class PlanqServer:
    """A planq that runs: its API's `url`, and the folder with its data and `logs`."""

    url: str
    folder: Path

    def client(self) -> Client:
        """Return a client of its API, for a `with` statement."""
        from planq import Client

        return Client(self.url)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let pytest's configuration name the tools of `planq_server`, and the cassette."""
    parser.addini("planq_tools", "modules whose tools `planq_server` offers (PLANQ_TOOLS)", type="args", default=[])
    parser.addini("planq_cassette", "recorded replies of models for `planq_cassette` and `planq_server`", default="")


@pytest.fixture
def planq_cassette(pytestconfig: pytest.Config) -> Cassette:
    """A model whose replies were recorded, in the file that pytest's configuration names as `planq_cassette`."""
    from planq.testing.cassettes import Cassette

    return Cassette(_cassette_path(pytestconfig) or None)


@pytest.fixture(scope="session")
def planq_settings() -> Mapping[str, str]:
    """Settings of `planq_server`, by the names of environment variables; override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def planq_server(
    pytestconfig: pytest.Config, planq_settings: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PlanqServer]:
    """A planq with embedded servers, an API and workers, for the whole session; its tools are `planq_tools`."""
    from planq.deploy.local.parts import PLANQ
    from planq.testing.cassettes import replayed_model

    folder = tmp_path_factory.mktemp("planq")
    port = _free_port()
    # Nothing of the developer's own settings may reach it, and none of its own servers.
    own = ("PLANQ_", "CELERY_", "DATABASE_URL", "BROKER_URL", "REDIS_URL")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    tools = ",".join(pytestconfig.getini("planq_tools"))
    model = replayed_model(_cassette_path(pytestconfig))
    env = {**clean, **({"PLANQ_TOOLS": tools} if tools else {}), **model, **planq_settings}
    # The settings name servers for tests, so planq's tables are created there without asking.
    command = [*PLANQ, "up", "--no-flower", "--migrate", "--port", str(port), "--data", str(folder / "data")]
    said = folder / "up.log"
    with said.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command, env=env, cwd=pytestconfig.rootpath, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_up(process, said)
        yield PlanqServer(f"http://127.0.0.1:{port}", folder / "data")
    finally:
        _stop(process)


def _cassette_path(config: pytest.Config) -> str:
    path = config.getini("planq_cassette")
    return str(config.rootpath / path) if path else ""


def _wait_up(process: subprocess.Popen[bytes], said: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while _UP not in (log := said.read_text("utf-8", "replace")):
        if process.poll() is not None or time.monotonic() > until:
            pytest.fail(f"planq did not start:\n{log[-4000:]}", pytrace=False)
        time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
