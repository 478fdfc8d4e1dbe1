"""Failpoints: nothing at all when off, named by the contracts, refused when misspelt, exact when armed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from planq.shared.failpoints import EXIT_CODE, Failpoints, methods, point_names
from planq.shared.platform.errors import Misconfigured
from planq.worker.container import CRASH_POINTS
from planq.worker.tools.registry import Registry
from tests.support.stack import refused_start
from tests.support.tiers import rare
from tests.support.waiting import eventually


class Port(Protocol):
    async def write(self, number: int) -> int: ...

    def tell(self) -> str: ...


class Adapter:
    """A port's adapter that keeps what was done."""

    kept = "kept"

    def __init__(self) -> None:
        self.written: list[int] = []

    async def write(self, number: int) -> int:
        self.written.append(number)
        return -number

    def tell(self) -> str:
        return "told"


PORTS = {"store": methods(Port)}


def test_what_is_off_is_the_object_itself() -> None:
    adapter, registry = Adapter(), Registry()
    for off in (Failpoints(), Failpoints.load({}, PORTS), Failpoints.load({"PLANQ_FAILPOINT": ""}, PORTS)):
        assert off.around("store", adapter) is adapter
        assert off.around_tools("tool", registry) is registry
    armed_elsewhere = Failpoints.load({"PLANQ_FAILPOINT": "store.write:after"}, PORTS)
    assert armed_elsewhere.around("publisher", adapter) is adapter
    assert armed_elsewhere.around_tools("tool", registry) is registry


def test_a_port_names_its_own_points() -> None:
    assert point_names(PORTS) == ["store.tell:before", "store.tell:after", "store.write:before", "store.write:after"]
    assert "store.succeed_step:after" in point_names(CRASH_POINTS)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "store.wriet:after",
            "stores.write:after",
            "store.write:later",
            "store.write",
            "write",
            "store.write:after@0",
        ),
        *("store.write:after@", "store.write:after=hold", "store.write:after=hold:", "store.write:after@2 ", " "),
    ],
)
def test_what_is_no_point_is_refused_with_all_that_are(text: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        Failpoints.load({"PLANQ_FAILPOINT": text}, PORTS)
    assert repr(text) in refused.value.message
    assert "store.tell:before, store.tell:after" in refused.value.message


@pytest.mark.parametrize("program", [rare(("-m", "planq.worker", "io")), ("-m", "planq.api")], ids=["worker", "api"])
def test_a_process_refuses_to_start_with_a_misspelt_point(program: Sequence[str]) -> None:
    servers = {"DATABASE_URL": "postgresql://127.0.0.1:1/x", "BROKER_URL": "redis://127.0.0.1:1"}
    done = refused_start(*program, PLANQ_FAILPOINT="store.sucede_step:after", **servers)
    assert done.returncode == 2, done.stderr
    assert "store.sucede_step:after" in done.stderr
    assert "Traceback" not in done.stderr


DIE = """
import asyncio, sys
from planq.shared.failpoints import Failpoints, methods

class Loud:
    async def write(self, number):
        print(number, flush=True)

    def tell(self):
        print("told", flush=True)

async def main(point):
    port = Failpoints.load({"PLANQ_FAILPOINT": point}, {"store": methods(Loud)}).around("store", Loud())
    for number in range(4):
        await port.write(number)
    port.tell()

asyncio.run(main(sys.argv[1]))
print("lived")
"""


@pytest.mark.parametrize(
    ("point", "seen"),
    [
        rare("store.write:before", []),
        rare("store.write:after", ["0"]),
        rare("store.write:before@3", ["0", "1"]),
        ("store.write:after@3", ["0", "1", "2"]),
        rare("store.tell:before", ["0", "1", "2", "3"]),
        ("store.tell:after", ["0", "1", "2", "3", "told"]),
        rare("store.write:after@5", ["0", "1", "2", "3", "told", "lived"]),
    ],
)
def test_a_process_dies_exactly_there(point: str, seen: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIE, point], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == seen, done.stderr
    assert done.returncode == (0 if "lived" in seen else EXIT_CODE)


@pytest.mark.parametrize(("edge", "written"), [("before", []), ("after", [7])])
def test_a_held_call_stands_still_until_it_may_go_on(tmp_path: Path, edge: str, written: list[int]) -> None:
    adapter = Adapter()
    port: Any = Failpoints.load({"PLANQ_FAILPOINT": f"store.write:{edge}=hold:{tmp_path}"}, PORTS).around(
        "store", adapter
    )
    assert (port.kept, port.tell()) == ("kept", "told"), "the rest goes straight through"

    async def scenario() -> list[int]:
        call = asyncio.create_task(port.write(7))
        await asyncio.to_thread(eventually, (tmp_path / "held").exists)
        held = [*adapter.written, call.done()]
        (tmp_path / "go").touch()
        assert await call == -7
        assert await port.write(8) == -8, "only the first call was to stand still"
        return held

    assert asyncio.run(scenario()) == [*written, False]
    assert adapter.written == [7, 8]
