"""planq as its user sees it: real processes, and a browser that a whole file of tests shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from planq.deploy.local.valkey import EmbeddedValkey
from tests.support.browser import Visitor, chromium, lacking
from tests.support.lacking import require
from tests.support.servers import TestPostgres
from tests.support.stack import Stack


@pytest.fixture(scope="module")
def stack(
    postgres: TestPostgres, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """API and workers for the tests of a file, with tools that tests ask for."""
    require(lacking())
    url = postgres.create_migrated()
    env = {"PLANQ_TOOLS": "tests.support.tools", "PLANQ_FLOWER_URL": "http://127.0.0.1:5555/"}
    running = Stack(tmp_path_factory.mktemp("page"), url, valkey.url, env=env)
    running.start()
    yield running
    running.end()
    postgres.drop(url)


# For one file, not for the process: while a browser is driven, this thread cannot run event loops of its own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for the tests of a file."""
    with chromium() as running:
        yield running


@pytest.fixture
def visitor(browser: Browser, stack: Stack) -> Iterator[Visitor]:
    """Somebody who looks at planq's pages; whatever the browser complains of fails the test."""
    visitor = Visitor(browser, stack.url)
    yield visitor
    visitor.close()
    assert visitor.complaints == []
