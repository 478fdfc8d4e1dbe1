"""Budgets on the command line: as they are given with a job, and what its tree has used of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

_OPTION = "--budget"

_COUNTED = (
    ("max_tokens", "tokens", "tokens"),
    ("max_cost_usd", "cost_usd", "USD"),
    ("max_model_calls", "model_calls", "model calls"),
    ("max_steps", "steps", "steps"),
)
"""Each limit, what is used of it, and in which words."""


def budget_of(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return a budget as the API takes it; `ask` is true or false, all else a number. The API knows the names."""
    return {name: _flag(value) if name == "ask" else number(name, value, _OPTION) for name, value in pairs}


def budget_line(budget: Mapping[str, Any] | None) -> str | None:
    """Return what the tree of a job has used of its budget, in a line; None without one."""
    if not budget:
        return None
    used = budget.get("used") or {}
    told = [
        f"{_told(used.get(kind) or 0, unit)} of {_told(budget[limit], unit)} {unit}"
        for limit, kind, unit in _COUNTED
        if budget.get(limit) is not None
    ]
    return f"budget: {', '.join(told)}"


def number(name: str, value: str, option: str) -> int | float:
    """Return a number that was given with an option; raises `typer.BadParameter`."""
    try:
        given = float(value)
    except ValueError:
        given = float("nan")
    if not abs(given) < float("inf"):
        raise typer.BadParameter(f"{name}: expected a number, found {value[:80]!r}", param_hint=option)
    return int(given) if given.is_integer() else given


def _flag(value: str) -> bool:
    if value not in ("true", "false"):
        raise typer.BadParameter(f"ask: expected true or false, found {value[:80]!r}", param_hint=_OPTION)
    return value == "true"


def _told(amount: float, unit: str) -> str:
    return f"{amount:.4f}" if unit == "USD" else f"{amount:.0f}"
