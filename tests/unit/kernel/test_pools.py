"""Names of pools, and the queues that follow from them."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.broker import names
from planq.shared.broker.lists import TenantLists
from planq.shared.kernel.states import Pool, Priority, WakeQueue, pools_of, wake_queues
from planq.shared.platform.errors import Misconfigured
from planq.worker.tools import tool


@pytest.mark.parametrize("name", ["", "GPU", "9gpu", "gpu.bulk", "gpu 1", "x" * 33, "gpu\n"])
def test_what_is_no_name_of_a_pool_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected the name of a worker pool"):
        Pool(name)
    with pytest.raises(ValidationError):
        ToolDefinition(name="x", pool=name)


def test_a_pool_has_queues_and_lists_of_its_own() -> None:
    gpu = Pool("gpu-a100")
    assert wake_queues(gpu) == ["gpu-a100", "gpu-a100.bulk"]
    assert [queue.is_bulk for queue in wake_queues(gpu)] == [False, True]
    assert [wake_queues(gpu, only) for only in Priority] == [["gpu-a100"], ["gpu-a100.bulk"]]
    assert names.queue(WakeQueue.of(gpu, Priority.BULK)) == "planq.gpu-a100.bulk"
    lists = TenantLists(lambda: 0.0)
    assert lists.choose("planq.gpu-a100", "default") == "planq.gpu-a100"
    assert {lists.choose("planq.gpu-a100", f"t-{n}") for n in range(100)} == set(
        names.lists(WakeQueue("gpu-a100"))[1:]
    )
    assert names.queue_named(names.queue(WakeQueue("gpu"))) == WakeQueue("gpu")


def test_a_definition_names_its_pool_in_json() -> None:
    definition = ToolDefinition(name="train", pool=Pool("gpu"))
    stored = json.dumps(definition.model_dump(mode="json"))
    assert ToolDefinition.model_validate_json(stored) == definition
    assert definition.pool == "gpu"


def test_a_tool_with_a_bad_pool_is_refused_by_name() -> None:
    with pytest.raises(Misconfigured, match=r"bad.*pool: .*pattern"):

        @tool(pool="No pool")
        def bad() -> dict[str, int]:
            """Be refused."""
            return {}


def test_the_pools_of_workers_come_after_those_that_there_always_are() -> None:
    assert pools_of([]) == ["io", "cpu"]
    assert pools_of([{"pools": ["gpu"]}, {"pools": ["cpu"]}, {"pools": ["a"]}]) == ["io", "cpu", "a", "gpu"]
