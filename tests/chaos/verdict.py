"""Is the end of a job the right one? Compares what the API and the ledger tell with the recipe. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.recipes import Recipe

UNKNOWN = "outcome_unknown"


@dataclass(frozen=True, slots=True)
class Ended:
    """A job as the API told it at its end; `cancelled` says that the API took the cancel."""

    recipe: Recipe
    document: Mapping[str, Any]
    cancelled: bool

    @property
    def steps(self) -> Sequence[Mapping[str, Any]]:
        """The steps of its document."""
        steps: Sequence[Mapping[str, Any]] = self.document["steps"]
        return steps

    @property
    def unknown(self) -> list[int]:
        """The indices of the steps that ended as `outcome_unknown`."""
        return [step["index"] for step in self.steps if _code(step) == UNKNOWN]


def _code(step: Mapping[str, Any]) -> str | None:
    error = step["error"]
    return error["code"] if error else None


def defects(ended: Ended, starts: Counter[str], finishes: Counter[str]) -> list[str]:
    """Return what is wrong with the end of a job, nothing when it is right.

    `starts` and `finishes` count the ledger's lines by idempotency key.
    """
    recipe, document = ended.recipe, ended.document
    expected = "cancelled" if ended.cancelled else "completed"
    found = []
    if document["status"] != expected:
        found.append(f"status is {document['status']}, expected {expected}: {document['error']}")
    if not ended.cancelled and document.get("stop_reason") != recipe.stop_reason:
        found.append(f"stop_reason is {document.get('stop_reason')}, expected {recipe.stop_reason}")
    # What needs an unknown outcome is not even planned where it would be in a later round.
    is_short = ended.unknown and recipe.stop_reason is not None and len(ended.steps) < len(recipe.outputs)
    if not ended.cancelled and not is_short and len(ended.steps) != len(recipe.outputs):
        found.append(f"{len(ended.steps)} steps, expected {len(recipe.outputs)}")
    for step in ended.steps:
        found += _step_defects(ended, step)
        found += _ledger_defects(ended, step, starts, finishes)
    if not ended.cancelled and not ended.unknown:
        found += [
            f"the answer does not tell {text!r}" for text in recipe.told if text not in (document["answer"] or "")
        ]
    return found


def _step_defects(ended: Ended, step: Mapping[str, Any]) -> list[str]:
    index, status = step["index"], step["status"]
    name = f"step {index} ({step['tool_name']})"
    if status == "succeeded":
        right = ended.recipe.outputs[index]
        return [] if step["output"] == right else [f"{name} gave {_short(step['output'])}, expected {_short(right)}"]
    if ended.cancelled and status == "cancelled":
        return []
    if status == "failed" and index in ended.recipe.unsafe and _code(step) == UNKNOWN:
        return []
    if status == "skipped" and ended.unknown and index > min(ended.unknown):
        return []
    return [f"{name} is {status}: {_short(step['error'])}"]


def _ledger_defects(ended: Ended, step: Mapping[str, Any], starts: Counter[str], finishes: Counter[str]) -> list[str]:
    """Compare a step with the ledger: what succeeded has happened, what never began has not."""
    index, status, tool = step["index"], step["status"], step["tool_name"]
    if not tool.startswith("chaos_"):
        return []
    key = f"{ended.document['id']}/{index}"
    begun, done = starts[key], finishes[key]
    if status == "succeeded" and not done:
        return [f"step {index} ({tool}) succeeded, but its call never came to its end"]
    if (status == "skipped" or step["attempt"] == 0) and begun:
        return [f"step {index} ({tool}) is {status}, but it was called {begun} times"]
    return []


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}… ({len(text)} characters)"
