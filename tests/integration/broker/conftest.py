"""Both brokers, each time: here is what differs between them."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["valkey", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker_url(request: pytest.FixtureRequest) -> str:
    """A broker of each kind in turn, not only in a whole run."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
