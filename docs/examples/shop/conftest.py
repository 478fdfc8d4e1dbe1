"""planq on the shop's own servers, beside its tables and its queues."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shared import BROKER, DATABASE, TABLES, database

NEEDED = ("SHOP_DATABASE_URL", "SHOP_BROKER_URL")


@pytest.fixture(scope="session")
def planq_settings() -> dict[str, str]:
    """planq stands in the shop's database and Redis."""
    if missing := [name for name in NEEDED if name not in os.environ]:
        pytest.skip(f"{missing[0]} is not set")
    return {"DATABASE_URL": DATABASE, "BROKER_URL": BROKER}


@pytest.fixture(scope="session")
def shop(planq_settings, planq_server) -> Iterator[None]:
    """The shop's tables and its Celery worker."""
    with database() as connection:
        connection.execute(TABLES)
        connection.execute("INSERT INTO stock VALUES ('lamp', 10), ('rug', 1) ON CONFLICT DO NOTHING")
    env = {**os.environ, "PLANQ_URL": planq_server.url}
    command = [sys.executable, "-m", "celery", "-A", "worker", "worker", "--pool", "solo"]
    with subprocess.Popen(command, env=env) as worker:
        yield
        worker.terminate()
