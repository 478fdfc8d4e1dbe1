"""A resource of each pool, which tells when it is opened and closed, in which process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from planq.worker.tools import resource, tool
from tests.faults.tools import OUTPUT, enter

FOLDER = "FAULT_FOLDER"


class Desk:
    """What the tool of the pool `io` shares."""


class Bench:
    """What the tool of the pool `cpu` shares."""


def _tell(what: str) -> None:
    enter(Path(os.environ[FOLDER]) / "resources", f"{what} {os.getpid()}")


@resource
async def desk() -> AsyncIterator[Desk]:
    """Open a desk."""
    _tell("desk opened")
    yield Desk()
    _tell("desk closed")


@resource
def bench() -> Iterator[Bench]:
    """Open a bench."""
    _tell("bench opened")
    yield Bench()
    _tell("bench closed")


@tool(effect="read", output_schema=OUTPUT)
async def at_desk(desk: Desk) -> dict[str, str]:
    """Say where it was."""
    return {"text": f"{type(desk).__name__} {os.getpid()}"}


@tool(effect="read", output_schema=OUTPUT)
def at_bench(bench: Bench) -> dict[str, str]:
    """Say where it was."""
    return {"text": f"{type(bench).__name__} {os.getpid()}"}
