"""The tools of the workloads: steps that do nothing, wait, or gather, and those of ParallelQA.

`PLANQ_TOOLS=tests.bench.tools` makes a worker offer them.
"""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from planq.worker.tools import tool
from tests.bench import parallelqa


class Value(BaseModel):
    """What one step hands to the next."""

    value: int


class Count(BaseModel):
    """How many values a join was given."""

    count: int


@tool(name="bench_noop", effect="pure", pool="io")
async def noop(value: int = 0) -> Value:
    """Return the value at once."""
    return Value(value=value)


@tool(name="bench_next", effect="pure", pool="io")
async def following(value: int) -> Value:
    """Return the number after the value at once."""
    return Value(value=value + 1)


@tool(name="bench_look", effect="read", pool="io")
async def look(value: int) -> Value:
    """Return the value at once, as a tool that looks at the world may; most tools are of this effect or the next."""
    return Value(value=value)


@tool(name="bench_put", effect="idempotent", pool="io")
async def put(value: int) -> Value:
    """Return the value at once, as a tool that writes under a key would."""
    return Value(value=value)


@tool(name="bench_wait", effect="pure", pool="io")
async def wait(seconds: float) -> Value:
    """Hold nothing but a place for so long, as a call of another service does."""
    await asyncio.sleep(seconds)
    return Value(value=0)


@tool(name="bench_join", effect="pure", pool="io")
async def join(values: list[int]) -> Count:
    """Count what the steps before have returned."""
    return Count(count=len(values))


class Words(BaseModel):
    """More text than a row keeps."""

    text: str


@tool(name="bench_text", effect="pure", pool="io")
async def text(size: int) -> Words:
    """Return so many characters."""
    return Words(text="word " * (size // 5))


@tool(name=parallelqa.SEARCH, effect="read", pool="io")
async def search(query: str, thing: int) -> Value:
    """Look up one of the things that a question of ParallelQA compares."""
    await asyncio.sleep(parallelqa.SEARCH_SECONDS)
    return Value(value=len(query) + thing)


@tool(name=parallelqa.COMPUTE, effect="pure", pool="io")
async def compute(value: int) -> Value:
    """Compute with what was found."""
    await asyncio.sleep(parallelqa.COMPUTE_SECONDS)
    return Value(value=2 * value)


@tool(name=parallelqa.JOIN, effect="pure", pool="io")
async def compare(values: list[int]) -> Value:
    """Return the largest value."""
    return Value(value=max(values))
