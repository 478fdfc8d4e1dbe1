"""A process that lacks a master key which stored secrets need."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable

import pytest

from planq.deploy.local.child import has_exited
from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.master_keys import read_master_keys
from planq.shared.subjects.tenants.secrets import SecretStore
from tests.support.stack import Stack
from tests.support.waiting import eventually


@pytest.mark.parametrize("program", [("planq.worker", "io"), ("planq.worker", "cpu"), ("planq.api",)])
def test_a_process_without_a_key_that_stored_secrets_need_refuses_to_start(
    database_url: str, valkey_url: str, make_stack: Callable[..., Stack], program: tuple[str, ...]
) -> None:
    """An extra worker without PLANQ_SECRET_KEYS ended replies for good: to it their tenant had no token."""
    [lost] = read_master_keys(base64.b64encode(bytes(32)).decode())

    async def store() -> None:
        async with Database(database_url, max_connections=1) as database:
            await SecretStore(database, [lost]).put("default", "telegram_token", "123456:ABCDEFGH")

    asyncio.run(store())
    stack = make_stack(database_url, valkey_url)
    process = stack.run("one", "-m", *program)

    eventually(lambda: has_exited(process), 60, what="it ends")
    assert stack.processes.pop("one").wait() == 2
    assert f"found none with the id {lost.id!r}, which 1 of 1 secrets need" in (stack.log("one").read_text())
