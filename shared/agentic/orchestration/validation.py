"""Read an orchestration plan from JSON, or return all its defects: cases orchestrate_plan_validation.

Paths are written like `steps[0].parallel.steps[1].agent_id`, and begin each message. Defects of single steps come
first, then those of several: ids, result keys, references. Nothing is recursive; a wrong type is one defect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from planq.shared.agentic.orchestration.plan import (
    STRATEGIES,
    AgentCall,
    MergeStrategy,
    OrchestrationEvent,
    OrchestrationPlan,
    OrchestrationStep,
    ParallelGroup,
    StepType,
)
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.agentic.tools.names import MAX_AGENT_NAME
from planq.shared.kernel.limits import MAX_TIMEOUT_SECONDS
from planq.shared.platform.errors import capped
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.describe import excerpt, is_deeper_than, sentence_list
from planq.shared.platform.values.pointers import path_pointer

STEP_ID = re.compile(r"[a-zA-Z0-9_.:-]+")
RESULT_KEY = re.compile(r"[a-zA-Z0-9_.-]+")
STATUSES = ("pending", "running", "success", "failed", "partial", "skipped")

MAX_TIMEOUT_MS = round(MAX_TIMEOUT_SECONDS * 1000)
"""The hard cap of one agent (docs/decisions.md, D11)."""

MAX_CHILDREN = 1_000
"""Maximum agents of one group, which count neither as steps nor as depth."""

_TYPE_NAMES: Mapping[type, str] = {str: "a string", int: "a whole number", dict: "an object", list: "an array"}


def defects_text(defects: Sequence[Defect]) -> str:
    """Return the first 20 messages in one line."""
    return sentence_list([defect.message for defect in defects], 20)


def pointer_of(path: str) -> str:
    """Return the JSON pointer for the path of a defect, such as `/steps/0/id` for `steps[0].id`."""
    return path_pointer(re.findall(r"[^.\[\]]+", path))


def read_plan(raw: Any, *, max_steps: int | None = None) -> OrchestrationPlan | list[Defect]:
    """Return the plan in decoded JSON, or all its defects in order; unknown keys are ignored (opv-105)."""
    defects = _plan_defects(raw, max_steps)
    if defects:
        return defects
    steps = tuple(
        OrchestrationStep(
            item["id"], _call(item["agent"]) if item["type"] == StepType.AGENT else _group(item["parallel"])
        )
        for item in raw["steps"]
    )
    return OrchestrationPlan(raw.get("id") or "", steps, dict(raw.get("bindings") or {}))


def _result_keys(step: Mapping[str, Any]) -> Iterator[str]:
    """Yield the result keys of a step: the agent's, or those of the children and the group."""
    agent, group = step.get("agent"), step.get("parallel")
    calls: list[Any] = []
    if step.get("type") == "agent":
        calls = [agent]
    elif step.get("type") == "parallel" and isinstance(group, Mapping):
        listed = group.get("steps")
        calls = [*(listed if isinstance(listed, list) else ()), {"result_key": group.get("result_key")}]
    yield from filter(None, (_text(call, "result_key") for call in calls if isinstance(call, Mapping)))


def _call(raw: Mapping[str, Any]) -> AgentCall:
    return AgentCall(
        agent_id=raw["agent_id"].strip(),
        action_id=(raw.get("action_id") or "").strip(),
        prompt=raw.get("prompt") or "",
        with_=dict(raw.get("with") or {}),
        result_key=raw.get("result_key") or "",
        timeout_ms=raw.get("timeout_ms"),
    )


def _group(raw: Mapping[str, Any]) -> ParallelGroup:
    return ParallelGroup(
        calls=tuple(_call(item) for item in raw["steps"]),
        max_concurrency=raw.get("max_concurrency"),
        merge_strategy=MergeStrategy(raw.get("merge_strategy") or MergeStrategy.COLLECT),
        result_key=raw.get("result_key") or "",
        bindings=dict(raw.get("bindings") or {}),
    )


def _plan_defects(raw: Any, max_steps: int | None) -> list[Defect]:
    if raw is None:
        return [Defect("plan", "required", "plan is nil: expected an object with steps")]
    if not isinstance(raw, Mapping):
        return [_wrong_type("plan", dict, raw)]
    if is_deeper_than(raw, MAX_DEPTH):
        return [Defect("plan", "depth", f"plan is nested more than {MAX_DEPTH} levels deep")]
    defects = [*_typed(raw, "", {"id": str, "name": str, "description": str, "bindings": dict, "steps": list})]
    steps = raw.get("steps")
    if steps is None or steps == []:
        return [*defects, Defect("steps", "min_items", "plan requires at least one step")]
    if not isinstance(steps, list):
        return defects
    if max_steps is not None and len(steps) > max_steps:
        excess = f"at most {max_steps} are allowed, found {len(steps)}; do it in fewer steps or in parallel groups"
        defects.append(Defect("steps", "max_items", f"steps: {excess}"))
    for number, step in enumerate(steps):
        defects += _step_defects(step, f"steps[{number}]")
    sound = [(f"steps[{number}]", step) for number, step in enumerate(steps) if isinstance(step, Mapping)]
    return [*defects, *_repeated_ids(sound), *_repeated_keys(sound), *_bad_references(sound)]


def _step_defects(step: Any, path: str) -> Iterator[Defect]:
    if not isinstance(step, Mapping):
        yield _wrong_type(path, dict, step)
        return
    yield from _typed(step, f"{path}.", {"id": str, "type": str, "status": str, "name": str, "description": str})
    yield from _word(step, path, "id", STEP_ID, is_required=True)
    yield from _word(step, path, "type", tuple(StepType), is_required=True)
    yield from _word(step, path, "status", STATUSES, is_required=True)
    kind = step.get("type")
    for name, check in ((StepType.AGENT, _agent_defects), (StepType.PARALLEL, _group_defects)):
        if name == kind and step.get(name) is None:
            yield Defect.at(f"{path}.{name}", "required", f"is required for {name} steps")
        elif name == kind:
            yield from check(step[name], f"{path}.{name}")
        elif kind in tuple(StepType) and step.get(name) is not None:
            yield Defect.at(f"{path}.{name}", "forbidden", f"must be omitted for {kind} steps")
    if step.get("transitions") is not None:
        yield from _transition_defects(step["transitions"], f"{path}.transitions")


def _agent_defects(call: Any, path: str) -> Iterator[Defect]:
    if not isinstance(call, Mapping):
        yield _wrong_type(path, dict, call)
        return
    fields = {"agent_id": str, "action_id": str, "prompt": str, "with": dict, "result_key": str, "timeout_ms": int}
    yield from _typed(call, f"{path}.", fields)
    name = _text(call, "agent_id").strip()
    if not name and isinstance(call.get("agent_id", ""), str):
        yield Defect.at(f"{path}.agent_id", "required", "is required")
    elif len(name) > MAX_AGENT_NAME:
        excess = f"has {len(name)} characters; names of agents have at most {MAX_AGENT_NAME}"
        yield Defect.at(f"{path}.agent_id", "max_length", excess)
    yield from _word(call, path, "result_key", RESULT_KEY)
    timeout, place = call.get("timeout_ms"), f"{path}.timeout_ms"
    if _is_int(timeout) and timeout < 1:
        expected = f"expected 1 to {MAX_TIMEOUT_MS}, found {timeout}"
        yield Defect.at(place, "min", f"must be >= 0, and 0 does not mean unlimited: {expected}")
    elif _is_int(timeout) and timeout > MAX_TIMEOUT_MS:
        expected = f"expected 1 to {MAX_TIMEOUT_MS}, found {timeout}"
        yield Defect.at(place, "max", f"cannot exceed {MAX_TIMEOUT_MS}: {expected}")


def _group_defects(group: Any, path: str) -> Iterator[Defect]:
    if not isinstance(group, Mapping):
        yield _wrong_type(path, dict, group)
        return
    fields = {"steps": list, "max_concurrency": int, "merge_strategy": str, "result_key": str, "bindings": dict}
    yield from _typed(group, f"{path}.", fields)
    calls = group.get("steps")
    if calls is None or calls == []:
        yield Defect.at(f"{path}.steps", "min_items", "requires at least one agent")
    elif isinstance(calls, list):
        if len(calls) > MAX_CHILDREN:
            excess = f"{path}.steps: at most {MAX_CHILDREN} agents are allowed, found {len(calls)}"
            yield Defect(f"{path}.steps", "max_items", excess)
        for number, call in enumerate(calls[:MAX_CHILDREN]):
            yield from _agent_defects(call, f"{path}.steps[{number}]")
    most = group.get("max_concurrency")
    if _is_int(most) and most < 1:
        expected = f"must be non-negative, and 0 does not mean unlimited: expected at least 1, found {most}"
        yield Defect.at(f"{path}.max_concurrency", "min", expected)
    yield from _word(group, path, "merge_strategy", STRATEGIES)
    yield from _word(group, path, "result_key", RESULT_KEY)


def _transition_defects(transitions: Any, path: str) -> Iterator[Defect]:
    if not isinstance(transitions, Mapping):
        yield _wrong_type(path, dict, transitions)
        return
    fields = {"allowed_events": list, "failure_branch_ids": list, "default_next_step": str}
    yield from _typed(transitions, f"{path}.", fields)
    known = tuple(OrchestrationEvent)
    seen: set[str] = set()
    for place, event in _texts(transitions, "allowed_events", path):
        if event not in known:
            yield Defect.at(place, "enum", f"{_quoted(event)} is invalid; expected one of {', '.join(known)}")
        elif event in seen:
            yield Defect.at(place, "duplicate", f"duplicates event {_quoted(event)}")
        seen.add(event)
    seen = set()
    for place, branch in _texts(transitions, "failure_branch_ids", path):
        if not branch:
            yield Defect.at(place, "required", "must not be empty")
        elif branch in seen:
            yield Defect.at(place, "duplicate", f"duplicates reference {_quoted(branch)}")
        seen.add(branch)


def _repeated_ids(steps: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Defect]:
    first: dict[str, str] = {}
    for path, step in steps:
        name = _text(step, "id")
        if name and name in first:
            yield Defect.at(f"{path}.id", "duplicate", f"duplicates {first[name]}.id {_quoted(name)}")
        first.setdefault(name, path)


def _repeated_keys(steps: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Defect]:
    """Result keys share one name space over steps, children and groups; empty ones never collide (case opv-034)."""
    first: dict[str, str] = {}
    for path, step in steps:
        for key in _result_keys(step):
            if key in first:
                repeated = f"uses result_key {_quoted(key)}, which is already used by {first[key]}; choose another"
                yield Defect.at(path, "duplicate_result_key", repeated)
            first.setdefault(key, path)


def _bad_references(steps: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Defect]:
    """The paths of these leave `transitions` out, as the original's do (cases opv-006, opv-035…038)."""
    known = {_text(step, "id") for _, step in steps} - {""}
    for path, step in steps:
        transitions = step.get("transitions")
        if not isinstance(transitions, Mapping):
            continue
        default = _text(transitions, "default_next_step")
        named = [(f"{path}.default_next_step", default)] if default else []
        for place, target in [*named, *_texts(transitions, "failure_branch_ids", path)]:
            if target and target == step.get("id"):
                yield Defect.at(place, "self_reference", "must not reference the current step")
            elif target not in known:
                yield Defect.at(place, "unknown_reference", f"references unknown step {_quoted(target)}")


def _typed(raw: Mapping[str, Any], path: str, fields: Mapping[str, type]) -> Iterator[Defect]:
    for name, wanted in fields.items():
        value = raw.get(name)
        if value is not None and not (_is_int(value) if wanted is int else isinstance(value, wanted)):
            yield _wrong_type(f"{path}{name}", wanted, value)


def _wrong_type(path: str, wanted: type, found: Any) -> Defect:
    expected = f"expected {_TYPE_NAMES[wanted]}, found {excerpt(found)}"
    return Defect(path, "type", f"failed to decode plan payload: {path}: {expected}")


def _word(
    raw: Mapping[str, Any],
    path: str,
    name: str,
    allowed: re.Pattern[str] | Sequence[str],
    *,
    is_required: bool = False,
) -> Iterator[Defect]:
    """Check a text by a pattern, or by the words that are allowed."""
    value, place = raw.get(name) or "", f"{path}.{name}"
    if not isinstance(value, str):
        return
    if isinstance(allowed, re.Pattern):
        expected, rule = f"must match {allowed.pattern}; found {_quoted(value)}", "pattern"
        choices, is_allowed = "", allowed.fullmatch(value) is not None
    else:
        choices, is_allowed, rule = f"one of {', '.join(allowed)}", value in allowed, "enum"
        expected = f"{_quoted(value)} is invalid; expected {choices}"
    if value and not is_allowed:
        yield Defect.at(place, rule, expected)
    elif not value and is_required:
        yield Defect.at(place, "required", "is required" + (choices and f"; {choices}"))


def _texts(raw: Mapping[str, Any], name: str, path: str) -> Iterator[tuple[str, str]]:
    listed = raw.get(name)
    for number, item in enumerate(listed if isinstance(listed, list) else ()):
        yield f"{path}.{name}[{number}]", item if isinstance(item, str) else excerpt(item)


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    return value if isinstance(value, str) else ""


def _is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _quoted(text: str) -> str:
    return '"' + capped(text, 80).replace("\n", " ") + '"'
