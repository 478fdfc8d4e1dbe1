"""A tenant's wake-ups keep out of the list that others flood, and a single tenant knows nothing of it."""

from __future__ import annotations

from collections import Counter

from planq.shared.broker import names
from planq.shared.broker.lists import TenantLists
from planq.shared.kernel.states import WakeQueue

QUEUE = names.queue(WakeQueue("io"))
TENANTS = [f"tenant-{number}" for number in range(500)]


def test_a_tenant_alone_keeps_to_one_list_and_the_default_one_has_the_first_for_itself() -> None:
    lists = TenantLists(lambda: 0.0)
    assert {lists.choose(QUEUE, "crowd") for _ in range(1_000)} < set(names.lists(WakeQueue("io"))[1:])
    assert len({lists.choose(QUEUE, "crowd") for _ in range(1_000)}) == 1
    assert {lists.choose(QUEUE, tenant) for tenant in ("default", "")} == {QUEUE}
    assert lists.choose(names.queue(WakeQueue("cpu.bulk")), "crowd") == "planq.cpu.bulk", "bulk work has one list"


def test_nobody_joins_the_list_that_another_tenant_floods() -> None:
    lists = TenantLists(lambda: 0.0)
    [flooded] = {lists.choose(QUEUE, "crowd") for _ in range(10_000)}
    others = Counter(lists.choose(QUEUE, tenant) for tenant in TENANTS)
    assert flooded not in others
    assert set(others) == set(names.lists(WakeQueue("io"))[1:]) - {flooded}
    assert max(others.values()) < 2 * len(TENANTS) / len(others), "they spread over the other lists"


def test_a_process_that_takes_the_flood_sends_nothing_after_it() -> None:
    lists = TenantLists(lambda: 0.0)
    flooded = names.lists(WakeQueue("cpu"))[3]
    for _ in range(10_000):
        lists.note(flooded, "crowd")
        lists.note("of no queue of planq's", "crowd")
    assert flooded not in {lists.choose(names.queue(WakeQueue("cpu")), tenant) for tenant in TENANTS}


def test_what_was_long_ago_is_forgotten() -> None:
    now = [0.0]
    lists = TenantLists(lambda: now[0])
    [flooded] = {lists.choose(QUEUE, "crowd") for _ in range(1_000)}
    chosen = {tenant: lists.choose(QUEUE, tenant) for tenant in TENANTS}
    now[0] = 3_600.0
    fresh = TenantLists(lambda: 0.0)
    again = {tenant: lists.choose(QUEUE, tenant) for tenant in TENANTS}
    assert again == {tenant: fresh.choose(QUEUE, tenant) for tenant in TENANTS}
    assert flooded in again.values()
    assert flooded not in chosen.values()
