"""Commands over HTTP against a server that records what it is asked, and answers as a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

from planq.deploy.cli.main import create_app
from tests.support.recorder import Recorder, recorder


@pytest.fixture
def server() -> Iterator[Recorder]:
    with recorder() as running:
        yield running


@pytest.fixture
def planq(server: Recorder, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`planq(*arguments, given=…)`: carry out a command whose API is the server, and what is typed into it."""
    monkeypatch.setenv("PLANQ_URL", server.url)
    monkeypatch.delenv("PLANQ_API_KEY", raising=False)

    def run(*arguments: str, given: str | bytes = "") -> Result:
        return CliRunner().invoke(create_app(), arguments, input=given)

    return run
