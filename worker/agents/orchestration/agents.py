"""Whether the agents of a plan are there and can be asked so: every defect before any of them starts.

What a call hands over is looked at as it was compiled: bindings stand in their places by then, and only what earlier
steps will find is not known yet. What cannot be known now is checked when the agent's own job begins, by the same
function (`asking.misfits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shared.domain.agents.asking import misfits, unstorable
from shared.domain.agents.document import AgentDocument, read_agent
from shared.domain.errors import capped
from shared.domain.references import from_pointer, parse, unescaped
from shared.domain.schemas import UNKNOWN
from worker.agents.orchestration.compiling import Compiled
from worker.agents.orchestration.defects import Defect
from worker.agents.orchestration.plan import AgentCall, Group, OrchestrationPlan


def agents_of(plan: OrchestrationPlan) -> list[str]:
    """Return the names of the agents that a plan calls, each once, in order."""
    return list(dict.fromkeys(call.agent_id for step in plan.steps for call in step.calls))


def agent_defects(
    plan: OrchestrationPlan, stored: Mapping[str, Mapping[str, Any]], compiled: Compiled | None = None
) -> list[Defect]:
    """Return what is wrong with the agents that a plan calls, their actions and what they are handed.

    `stored` are the documents in use of those agents, by name. Without `compiled`, for a plan that has other defects,
    no template counts as known.
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
        if not isinstance(step.call, Group):
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
        told = f"{path}.agent_id: there is no agent {capped(call.agent_id, 80)!r} in use"
        yield Defect(f"{path}.agent_id", "unknown_agent", told)
        return
    if not call.action_id and not call.prompt.strip():
        told = f"{path}: an agent needs something to do; give it an action_id or a prompt"
        yield Defect(path, "required", told)
    known = _known(call.with_) if arguments is None else _known(arguments.get("with") or {}, _set_aside(arguments))
    for one in [*unstorable(call.with_), *misfits(document, call.action_id or None, known, partial=True)]:
        place = f"{path}.action_id" if one.field == "action" else f"{path}.with{_dotted(one.pointer)}"
        yield Defect(place, one.rule, f"{place}: {one.message}")


def _set_aside(arguments: Mapping[str, Any]) -> frozenset[tuple[str, ...]]:
    return frozenset(from_pointer(pointer) for pointer in arguments.get("texts") or ())


def _known(value: Any, unknown: frozenset[tuple[str, ...]] = frozenset(), place: tuple[str, ...] = ("with",)) -> Any:
    """Return input data with `UNKNOWN` for every text that names something, or stands at one of the places."""
    if isinstance(value, Mapping):
        return {name: _known(item, unknown, (*place, str(name))) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_known(item, unknown, (*place, str(number))) for number, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    return UNKNOWN if place in unknown or "{{" in value or parse(value) is not None else unescaped(value)


def _dotted(pointer: str) -> str:
    """Return a pointer as plans write their paths."""
    return "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in from_pointer(pointer))
