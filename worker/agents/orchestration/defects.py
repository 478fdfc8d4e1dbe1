"""Every defect of an orchestration plan, collected in one pass over its JSON: cases orchestrate_plan_validation.

Paths are written as their author would look for them, `steps[0].parallel.steps[1].agent_id`; messages begin with the
path. What is checked about one step comes first, step by step; what concerns several comes after it: ids, result
keys, references. Nothing here is recursive, and a value of the wrong type is one defect, not an exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.domain.errors import capped
from shared.domain.names import MAX_AGENT_NAME
from shared.domain.schemas import MAX_DEPTH, excerpt, is_deeper_than
from shared.domain.tool import MAX_TIMEOUT_SECONDS
from worker.agents.orchestration.words import EVENTS, STRATEGIES, TYPES, StepType

STEP_ID = re.compile(r"[a-zA-Z0-9_.:-]+")
RESULT_KEY = re.compile(r"[a-zA-Z0-9_.-]+")
STATUSES = ("pending", "running", "success", "failed", "partial", "skipped")

MAX_TIMEOUT_MS = round(MAX_TIMEOUT_SECONDS * 1000)
"""docs/decisions.md, D11: the hard cap of one agent."""

MAX_CHILDREN = 1_000
"""Agents of one group; they count neither as steps nor against the depth, so something has to bound them."""

_TYPES: Mapping[type, str] = {str: "a string", int: "a whole number", dict: "an object", list: "an array"}


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect: `path` leads to it, `rule` names what is broken, `message` says it to people."""

    path: str
    rule: str
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return `{"path", "rule", "message"}`."""
        return {"path": self.path, "rule": self.rule, "message": self.message}


def render(defects: Sequence[Defect], limit: int = 20) -> str:
    """Return the first `limit` messages in one line."""
    more = f"; and {len(defects) - limit} more" if len(defects) > limit else ""
    return "; ".join(defect.message for defect in defects[:limit]) + more


def plan_defects(raw: Any, *, max_steps: int | None = None) -> list[Defect]:
    """Return all defects of a plan, none for a valid one; `max_steps` bounds its steps, not those of its groups."""
    if raw is None:
        return [Defect("plan", "required", "plan is nil: expected an object with steps")]
    if not isinstance(raw, Mapping):
        return [_wrong_type("plan", dict, raw)]
    if is_deeper_than(raw, MAX_DEPTH):
        return [Defect("plan", "depth", f"plan is nested more than {MAX_DEPTH} levels deep")]
    defects = [*_typed(raw, "", {"id": str, "name": str, "description": str, "bindings": dict, "steps": list})]
    steps = raw.get("steps")
    if steps is None or steps == []:
        return [*defects, _no_steps()]
    if not isinstance(steps, list):
        return defects
    if max_steps is not None and len(steps) > max_steps:
        told = (
            f"steps: at most {max_steps} are allowed, found {len(steps)}; do it in fewer steps or in parallel groups"
        )
        defects.append(Defect("steps", "max_items", told))
    for number, step in enumerate(steps):
        defects += _step_defects(step, f"steps[{number}]")
    sound = [(f"steps[{number}]", step) for number, step in enumerate(steps) if isinstance(step, Mapping)]
    return [*defects, *_repeated_ids(sound), *_repeated_keys(sound), *_bad_references(sound)]


def _no_steps() -> Defect:
    return Defect("steps", "min_items", "plan requires at least one step")


def _step_defects(step: Any, path: str) -> Iterator[Defect]:
    if not isinstance(step, Mapping):
        yield _wrong_type(path, dict, step)
        return
    yield from _typed(step, f"{path}.", {"id": str, "type": str, "status": str, "name": str, "description": str})
    yield from _pattern(step, path, "id", STEP_ID, is_required=True)
    yield from _enum(step, path, "type", TYPES, is_required=True)
    yield from _enum(step, path, "status", STATUSES, is_required=True)
    kind = step.get("type")
    for name, check in _PAYLOADS.items():
        if name == kind and step.get(name) is None:
            yield Defect(f"{path}.{name}", "required", f"{path}.{name} is required for {name} steps")
        elif name == kind:
            yield from check(step[name], f"{path}.{name}")
        elif kind in TYPES and step.get(name) is not None:
            yield Defect(f"{path}.{name}", "forbidden", f"{path}.{name} must be omitted for {kind} steps")
    if step.get("transitions") is not None:
        yield from _transition_defects(step["transitions"], f"{path}.transitions")


def _agent_defects(call: Any, path: str) -> Iterator[Defect]:
    if not isinstance(call, Mapping):
        yield _wrong_type(path, dict, call)
        return
    fields = {"agent_id": str, "action_id": str, "prompt": str, "with": dict, "result_key": str, "timeout_ms": int}
    yield from _typed(call, f"{path}.", fields)
    if not _text(call, "agent_id").strip() and isinstance(call.get("agent_id", ""), str):
        yield Defect(f"{path}.agent_id", "required", f"{path}.agent_id is required")
    elif len(name := _text(call, "agent_id").strip()) > MAX_AGENT_NAME:
        told = f"{path}.agent_id has {len(name)} characters; names of agents have at most {MAX_AGENT_NAME}"
        yield Defect(f"{path}.agent_id", "max_length", told)
    yield from _pattern(call, path, "result_key", RESULT_KEY)
    yield from _timeout(call.get("timeout_ms"), f"{path}.timeout_ms")


def _group_defects(group: Any, path: str) -> Iterator[Defect]:
    if not isinstance(group, Mapping):
        yield _wrong_type(path, dict, group)
        return
    fields = {"steps": list, "max_concurrency": int, "merge_strategy": str, "result_key": str, "bindings": dict}
    yield from _typed(group, f"{path}.", fields)
    calls = group.get("steps")
    if calls is None or calls == []:
        yield Defect(f"{path}.steps", "min_items", f"{path}.steps requires at least one agent")
    elif isinstance(calls, list):
        if len(calls) > MAX_CHILDREN:
            told = f"{path}.steps: at most {MAX_CHILDREN} agents are allowed, found {len(calls)}"
            yield Defect(f"{path}.steps", "max_items", told)
        for number, call in enumerate(calls[:MAX_CHILDREN]):
            yield from _agent_defects(call, f"{path}.steps[{number}]")
    most = group.get("max_concurrency")
    if most is not None and _is_int(most) and most < 1:
        told = f"must be non-negative, and 0 does not mean unlimited: expected at least 1, found {most}"
        yield Defect(f"{path}.max_concurrency", "min", f"{path}.max_concurrency {told}")
    yield from _enum(group, path, "merge_strategy", STRATEGIES)
    yield from _pattern(group, path, "result_key", RESULT_KEY)


_PAYLOADS: Mapping[str, Callable[[Any, str], Iterator[Defect]]] = {
    StepType.AGENT: _agent_defects,
    StepType.PARALLEL: _group_defects,
}


def _timeout(value: Any, path: str) -> Iterator[Defect]:
    if not _is_int(value):
        return
    expected = f"expected 1 to {MAX_TIMEOUT_MS}, found {value}"
    if value < 1:
        yield Defect(
            path,
            "min",
            f"{path.rpartition('.')[0]}.timeout_ms must be >= 0, and 0 does not mean unlimited: {expected}",
        )
    elif value > MAX_TIMEOUT_MS:
        yield Defect(path, "max", f"{path} cannot exceed {MAX_TIMEOUT_MS}: {expected}")


def _transition_defects(transitions: Any, path: str) -> Iterator[Defect]:
    if not isinstance(transitions, Mapping):
        yield _wrong_type(path, dict, transitions)
        return
    fields = {"allowed_events": list, "failure_branch_ids": list, "default_next_step": str}
    yield from _typed(transitions, f"{path}.", fields)
    seen: set[str] = set()
    for place, event in _texts(transitions, "allowed_events", path):
        if event not in EVENTS:
            yield Defect(place, "enum", f"{place} {_quoted(event)} is invalid; expected one of {', '.join(EVENTS)}")
        elif event in seen:
            yield Defect(place, "duplicate", f"{place} duplicates event {_quoted(event)}")
        seen.add(event)
    seen = set()
    for place, branch in _texts(transitions, "failure_branch_ids", path):
        if not branch:
            yield Defect(place, "required", f"{place} must not be empty")
        elif branch in seen:
            yield Defect(place, "duplicate", f"{place} duplicates reference {_quoted(branch)}")
        seen.add(branch)


def _repeated_ids(steps: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Defect]:
    first: dict[str, str] = {}
    for path, step in steps:
        name = _text(step, "id")
        if name and name in first:
            yield Defect(f"{path}.id", "duplicate", f"{path}.id duplicates {first[name]}.id {_quoted(name)}")
        first.setdefault(name, path)


def _repeated_keys(steps: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Defect]:
    """Result keys share one name space over steps, children and groups; empty ones never collide (case opv-034)."""
    first: dict[str, str] = {}
    for path, step in steps:
        for key in result_keys(step):
            if key in first:
                told = f"{path} uses result_key {_quoted(key)}, which is already used by {first[key]}; choose another"
                yield Defect(path, "duplicate_result_key", told)
            first.setdefault(key, path)


def result_keys(step: Mapping[str, Any]) -> Iterator[str]:
    """Yield the result keys of a step of a plan's JSON: the agent's, or those of the children, then the group's."""
    agent, group = step.get("agent"), step.get("parallel")
    if step.get("type") == "agent" and isinstance(agent, Mapping):
        calls: Sequence[Any] = [agent]
    elif step.get("type") == "parallel" and isinstance(group, Mapping):
        listed = group.get("steps")
        calls = [*(listed if isinstance(listed, list) else ()), {"result_key": group.get("result_key")}]
    else:
        return
    for call in calls:
        key = _text(call, "result_key") if isinstance(call, Mapping) else ""
        if key:
            yield key


def _bad_references(steps: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Defect]:
    """The paths of these leave `transitions` out, as the original's do (cases opv-006, opv-035…038)."""
    known = {_text(step, "id") for _, step in steps} - {""}
    for path, step in steps:
        transitions = step.get("transitions")
        if not isinstance(transitions, Mapping):
            continue
        named = [(f"{path}.default_next_step", _text(transitions, "default_next_step") or None)]
        named += [(place, branch) for place, branch in _texts(transitions, "failure_branch_ids", path)]
        for place, target in named:
            if target is None:
                continue
            if target and target == step.get("id"):
                yield Defect(place, "self_reference", f"{place} must not reference the current step")
            elif target not in known:
                yield Defect(place, "unknown_reference", f"{place} references unknown step {_quoted(target)}")


def _typed(raw: Mapping[str, Any], path: str, fields: Mapping[str, type]) -> Iterator[Defect]:
    for name, wanted in fields.items():
        value = raw.get(name)
        if value is not None and not (_is_int(value) if wanted is int else isinstance(value, wanted)):
            yield _wrong_type(f"{path}{name}", wanted, value)


def _wrong_type(path: str, wanted: type, found: Any) -> Defect:
    told = f"failed to decode plan payload: {path}: expected {_TYPES[wanted]}, found {excerpt(found)}"
    return Defect(path, "type", told)


def _pattern(
    raw: Mapping[str, Any], path: str, name: str, pattern: re.Pattern[str], *, is_required: bool = False
) -> Iterator[Defect]:
    value = raw.get(name) or ""
    if not isinstance(value, str):
        return
    if not value:
        if is_required:
            yield Defect(f"{path}.{name}", "required", f"{path}.{name} is required")
    elif not pattern.fullmatch(value):
        told = f"{path}.{name} must match {pattern.pattern}; found {_quoted(value)}"
        yield Defect(f"{path}.{name}", "pattern", told)


def _enum(
    raw: Mapping[str, Any], path: str, name: str, allowed: Sequence[str], *, is_required: bool = False
) -> Iterator[Defect]:
    value = raw.get(name) or ""
    if not isinstance(value, str):
        return
    if not value:
        if is_required:
            yield Defect(f"{path}.{name}", "required", f"{path}.{name} is required; one of {', '.join(allowed)}")
    elif value not in allowed:
        told = f"{path}.{name} {_quoted(value)} is invalid; expected one of {', '.join(allowed)}"
        yield Defect(f"{path}.{name}", "enum", told)


def _texts(raw: Mapping[str, Any], name: str, path: str) -> Iterator[tuple[str, str]]:
    listed = raw.get(name)
    for number, item in enumerate(listed if isinstance(listed, list) else ()):
        yield f"{path}.{name}[{number}]", item if isinstance(item, str) else excerpt(item)


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    return value if isinstance(value, str) else ""


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _quoted(text: str) -> str:
    return '"' + capped(text, 80).replace("\n", " ") + '"'
