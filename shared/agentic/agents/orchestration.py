"""Check the agents of a plan against the stored documents, at submission and before the first one starts.

Outputs of earlier steps are unknown here; they are checked when the agent's own job begins (`input_defects`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planq.shared.agentic.agents.document import AgentDocument, read_agent
from planq.shared.agentic.agents.input import input_defects, unstorable_texts
from planq.shared.agentic.orchestration.compiling import Compiled
from planq.shared.agentic.orchestration.plan import AgentCall, OrchestrationPlan, ParallelGroup
from planq.shared.agentic.references.grammar import parse, unescaped
from planq.shared.agentic.schema.schemas import UNKNOWN
from planq.shared.platform.errors import capped
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.pointers import from_pointer


def agents_of(plan: OrchestrationPlan) -> list[str]:
    return list(dict.fromkeys(call.agent_id for step in plan.steps for call in step.calls))


def agent_defects(
    plan: OrchestrationPlan, stored: Mapping[str, Mapping[str, Any]], compiled: Compiled | None = None
) -> list[Defect]:
    """Return unknown agents and actions and unfit input data of a plan's calls.

    `stored` maps names to documents in use. Without `compiled` (the plan has other defects) templates are unknown.
    """
    documents = {name: read_agent(document) for name, document in stored.items()}
    return [
        defect
        for path, call, arguments in _calls(plan, compiled)
        for defect in _call_defects(path, call, documents, arguments)
    ]


def _calls(
    plan: OrchestrationPlan, compiled: Compiled | None
) -> Iterator[tuple[str, AgentCall, Mapping[str, Any] | None]]:
    for number, step in enumerate(plan.steps):
        made = None if compiled is None else compiled.plan["calls"][number]["arguments"]
        if not isinstance(step.call, ParallelGroup):
            yield f"steps[{number}].agent", step.call, made
            continue
        for position, call in enumerate(step.call.calls):
            one = None if made is None else made["steps"][position]
            yield f"steps[{number}].parallel.steps[{position}]", call, one


def _call_defects(
    path: str, call: AgentCall, documents: Mapping[str, AgentDocument], arguments: Mapping[str, Any] | None
) -> Iterator[Defect]:
    document = documents.get(call.agent_id)
    if document is None:
        unknown = f"{path}.agent_id: there is no agent {capped(call.agent_id, 80)!r} in use"
        yield Defect(f"{path}.agent_id", "unknown_agent", unknown)
        return
    if not call.action_id and not call.prompt.strip():
        missing = f"{path}: an agent needs something to do; give it an action_id or a prompt"
        yield Defect(path, "required", missing)
    known = _known(call.with_) if arguments is None else _known(arguments.get("with") or {}, _set_aside(arguments))
    for one in [*unstorable_texts(call.with_), *input_defects(document, call.action_id or None, known, partial=True)]:
        within = _dotted(one.pointer.removeprefix("with"))
        place = f"{path}.action_id" if one.pointer == "action" else f"{path}.with{within}"
        yield Defect(place, one.code, f"{place}: {one.message}")


def _set_aside(arguments: Mapping[str, Any]) -> frozenset[tuple[str, ...]]:
    return frozenset(from_pointer(pointer) for pointer in arguments.get("texts") or ())


def _known(value: Any, unknown: frozenset[tuple[str, ...]] = frozenset(), place: tuple[str, ...] = ("with",)) -> Any:
    """Return input data with `UNKNOWN` for every text that names something, or that is at one of the places."""
    if isinstance(value, Mapping):
        return {name: _known(item, unknown, (*place, str(name))) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_known(item, unknown, (*place, str(number))) for number, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    return UNKNOWN if place in unknown or "{{" in value or parse(value) is not None else unescaped(value)


def _dotted(pointer: str) -> str:
    return "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in from_pointer(pointer))
