"""Where readings.md overrides cases of the orchestration suites: rows 11, 13 and 15."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.conformance.cases import Case
from tests.conformance.rule import Expected, Rule


def _zeros(case: Case) -> Iterator[str]:
    """Yield the paths of limits that are 0: the original took that for "no limit of its own"."""
    plan = case.input.get("plan")
    for number, step in enumerate(plan.get("steps", ()) if isinstance(plan, Mapping) else ()):
        for path, payload in _payloads(step, f"steps[{number}]"):
            for name in ("timeout_ms", "max_concurrency"):
                if payload.get(name) == 0 and not isinstance(payload[name], bool):
                    yield f"{path}.{name}"


def _payloads(step: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if step.get("type") == "agent":
        yield f"{path}.agent", step.get("agent") or {}
    if step.get("type") == "parallel":
        group = step.get("parallel") or {}
        yield f"{path}.parallel", group
        for number, call in enumerate(group.get("steps") or ()):
            yield f"{path}.parallel.steps[{number}]", call


def _refuses_zeros(case: Case, expected: Expected) -> Expected:
    zeros = [{"path": path, "rule": "min"} for path in _zeros(case)]
    return {**expected, "valid": False, "errors": [*expected["errors"], *zeros]}


def _strategies(case: Case) -> Iterator[str]:
    plan = case.input.get("plan")
    for number, step in enumerate(plan.get("steps", ()) if isinstance(plan, Mapping) else ()):
        group = step.get("parallel") or {}
        if group.get("merge_strategy") in ("collect_all", "best_effort"):
            yield f"steps[{number}].parallel.merge_strategy"


def _knows_strategies(case: Case, expected: Expected) -> Expected:
    known = list(_strategies(case))
    errors = [error for error in expected["errors"] if error["path"] not in known or error["rule"] != "enum"]
    changed = {**expected, "valid": not errors, "errors": errors}
    if errors != expected["errors"]:
        changed.pop("message_contains", None)  # it told the error that is none
    return changed


def _entries(results: Any) -> Iterator[Mapping[str, Any]]:
    for entry in results:
        yield entry
        yield from _entries(entry.get("children", ()))


def _with_errors(entries: Any, errors: Mapping[str, Any]) -> list[Any]:
    told = []
    for entry in entries:
        entry = {**entry, **({"error": errors[entry["id"]]} if entry["id"] in errors else {})}
        told.append(entry | ({"children": _with_errors(entry["children"], errors)} if "children" in entry else {}))
    return told


def _shows_errors(case: Case, expected: Expected) -> Expected:
    errors = {entry["id"]: entry["error"] for entry in _entries(case.input["results"]) if "error" in entry}
    return {**expected, "steps": _with_errors(expected["steps"], errors)}


ORCHESTRATE_RULES: tuple[Rule, ...] = (
    Rule("zero is no limit", 11, "validate", lambda case, _: any(_zeros(case)), _refuses_zeros),
    Rule(
        "collect_all and best_effort are strategies",
        13,
        "validate",
        lambda case, _: any(_strategies(case)),
        _knows_strategies,
    ),
    Rule(
        "zero is no limit",
        11,
        "parallel_limit",
        lambda case, _: case.input["max_parallel"] < 1,
        lambda case, _: {"error": "refused"},
    ),
    Rule(
        "zero is no limit",
        11,
        "step_timeout",
        lambda case, _: case.input["default_timeout_ms"] < 1,
        lambda case, _: {"error": "refused"},
    ),
    Rule(
        "an entry tells its error",
        15,
        "render_output",
        lambda case, _: any("error" in entry for entry in _entries(case.input["results"])),
        _shows_errors,
    ),
)
