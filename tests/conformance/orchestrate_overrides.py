"""Where docs/decisions.md overrides cases of the orchestration suites: D11, D13 and D15."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.conformance.cases import Case
from tests.conformance.rule import Expected, Rule

DEFAULT_DEPTH = 3
TEMPLATE = re.compile(r"\{\{\s*bindings\.(\w+)\s*\}\}")


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


def _is_deep_without_limit(case: Case, expected: Expected) -> bool:
    return case.input["limits"]["max_depth"] == 0 and case.input["depth"] >= DEFAULT_DEPTH


def _denied(case: Case, expected: Expected) -> Expected:
    return {"error": "max_depth_exceeded", "started": [], "results": [], "bindings": {}}


def _is_denied(case: Case, expected: Expected) -> bool:
    return expected.get("error") == "max_depth_exceeded" and not expected["results"]


def _lists_what_was_denied(case: Case, expected: Expected) -> Expected:
    steps = [{"id": step["id"], "type": step["type"], "status": "skipped"} for step in case.input["plan"]["steps"]]
    return {**expected, "results": steps}


def _rendered(case: Case, expected: Expected) -> Expected:
    """Render the templates of one binding; the cases that the original left as they were have no others."""
    bindings = case.input["plan"].get("bindings", {})
    received = {
        step: {name: _value(text, bindings) for name, text in given.items()}
        for step, given in expected["received_with"].items()
    }
    return {**expected, "received_with": received}


def _value(text: Any, bindings: Mapping[str, Any]) -> Any:
    match = TEMPLATE.fullmatch(text) if isinstance(text, str) else None
    return bindings.get(match[1]) if match else text


def _skips_the_unreached(case: Case, expected: Expected) -> Expected:
    return {**expected, "results": [{**result, "status": "skipped"} for result in expected["results"]]}


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
    Rule("zero is no limit", 11, "run", _is_deep_without_limit, _denied),
    Rule("what was not reached is skipped", 15, "run", _is_denied, _lists_what_was_denied),
    Rule("with is rendered", 14, "run", lambda case, expected: "received_with" in expected, _rendered),
    Rule(
        "what was not reached is skipped",
        15,
        "run",
        lambda case, expected: bool(case.input.get("cancelled")),
        _skips_the_unreached,
    ),
    Rule(
        "an entry tells its error",
        15,
        "render_output",
        lambda case, _: any("error" in entry for entry in _entries(case.input["results"])),
        _shows_errors,
    ),
)
