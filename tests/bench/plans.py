"""Plans of the workloads, as a caller sends them: bodies of `POST /jobs`. Pure; `tools.py` has their tools."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

PREFIX = "bench"

FUSED, ORDINARY = ("noop",), ("look", "put")
"""Tools of a chain, by turns: `pure` ones, whose steps planq fuses, and those that read and write."""

Body = dict[str, Any]


def waiting(steps: int, seconds: float) -> Body:
    """Return so many independent steps that each wait, as a call of another service would."""
    return _body([_call("wait", seconds=seconds) for _ in range(steps)])


def fan_in(leaves: int) -> Body:
    """Return independent steps that do nothing, and a last one that takes a value from every one of them."""
    return _joined([_call("noop", value=index) for index in range(leaves)])


def asking(steps: int, tools: Sequence[str] = FUSED) -> Body:
    """Return a request in words, of which the model `offline` makes a chain of `steps` calls; no model costs less."""
    values = ["1", *(f'"${index}.output.value"' for index in range(steps - 1))]
    calls = zip(itertools.cycle(tools), values, strict=False)
    return {"input": ", then ".join(f'call {PREFIX}_{name} with {{"value": {value}}}' for name, value in calls)}


def brought(steps: int) -> Body:
    """Return the chain of `asking` as a plan of the caller's, which ends with the output of its last step."""
    calls = [_call("noop", value=f"${index - 1}.output.value" if index else 1) for index in range(steps)]
    return {**_body(calls), "respond": "output"}


def sleeping(seconds: float) -> Body:
    """Return one step that waits without a worker, and nothing after it."""
    return {**_body([{"tool_name": "wait", "arguments": {"seconds": seconds}}]), "respond": "output"}


def turns(count: int) -> Body:
    """Return a request in words for `react`: `count` calls, each with the value that the one before it returned."""
    values = ["1", *(f'"${index}.output.value"' for index in range(count - 1))]
    calls = (f'call {PREFIX}_next with {{"value": {value}}}' for value in values)
    return {"input": ", then ".join(calls), "strategy": "react"}


def gathering(steps: int, seconds: float) -> Body:
    """Return so many steps that wait beside one another, and a last one that takes a value from every one of them."""
    return _joined([_call("wait", seconds=seconds) for _ in range(steps)])


def children(count: int) -> Body:
    """Return one step that hands over to so many child jobs at once (`children.py` has its tool)."""
    return _body([_call("children", count=count)])


def chains(steps: int, length: int, tools: Sequence[str] = FUSED) -> Body:
    """Return chains of `length` steps, `steps` of them together; each step but a first uses the one before it.

    The steps stand link by link: first all first ones, then all second ones. Raises `ValueError` unless `length`
    divides `steps`.
    """
    count, rest = divmod(steps, length)
    if rest:
        raise ValueError(f"{steps} steps are no whole number of chains of {length}")
    return _body(
        [
            _call(name, value=index if index < count else f"${index - count}.output.value")
            for index, name in zip(range(steps), itertools.cycle(tools), strict=False)
        ]
    )


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_name": f"{PREFIX}_{name}", "arguments": arguments}


def _joined(calls: list[dict[str, Any]]) -> Body:
    """Return a plan of these calls and of one that takes a value from every one of them."""
    return _body([*calls, _call("join", values=[f"${index}.output.value" for index in range(len(calls))])])


def _body(calls: list[dict[str, Any]]) -> Body:
    return {"input": "Carry out the plan.", "plan": {"calls": calls}, "respond": "model"}
