"""Fixtures of the model gateway's tests over the wire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.llm.wire import WireServer


@pytest.fixture
def server() -> Iterator[WireServer]:
    running = WireServer()
    yield running
    running.close()
