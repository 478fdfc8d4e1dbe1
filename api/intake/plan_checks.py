"""Plans that callers write, checked against the tools that are there, in whichever form they are written.

    valid_plan       the plan of a job, or the refusal of the request
    check_plan       the plan, or everything that is wrong with it
    agent_errors     what is wrong with the calls of agents in plans for agents

Nothing is stored, and a long plan is checked beside the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from planq.api.documents import decoded
from planq.api.http.exchange import MAX_DEFECTS, left_out
from planq.shared.agentic.agents.orchestration import agent_defects, agents_of
from planq.shared.agentic.orchestration.compiling import Compiled, compile_orchestration
from planq.shared.agentic.orchestration.plan import ORCHESTRATE, OrchestrationPlan
from planq.shared.agentic.orchestration.request import OrchestrateLimits
from planq.shared.agentic.orchestration.validation import read_plan as read_orchestration
from planq.shared.agentic.plan.document import Plan, parse_plan
from planq.shared.agentic.plan.errors import PlanError, format_plan_errors, invalid_plan
from planq.shared.agentic.plan.forms import (
    PlanForm,
    ReadPlan,
    defect_place,
    of_agents,
    orchestrations_in,
    read_any_form,
    readable_part_of,
)
from planq.shared.agentic.plan.validation import further_errors, place_of_nested, validate_plan
from planq.shared.agentic.references.grammar import bare_references, find_references
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.names import resolve_name, suggestion
from planq.shared.kernel.limits import Limits
from planq.shared.platform.computing import INLINE_CHARS, off_loop
from planq.shared.platform.errors import InvalidRequest, PlanInvalid, capped
from planq.shared.platform.values.encoding import JsonText, is_larger
from planq.shared.subjects.agents.store import DocumentStore

BARE_REFERENCE = "bare_reference"

_INLINE_CALLS = 200
"""Up to this many calls a plan is checked on the event loop (about 10 ms); longer ones go to a thread."""

_MANY_DEFECTS = 100
"""Maximum number of structural defects for which the other checks still run."""

_MAX_NAMED = 100


async def valid_plan(
    raw: Any, names: Sequence[str] | None, tools: Mapping[str, ToolDefinition], limits: Limits
) -> Plan:
    """Return the plan over the tools of these names that `raw` is, in any of its forms; no step is dropped.

    A plan for agents becomes the one call that runs it. Raises `PlanInvalid` with the first defects.
    """
    agents = OrchestrateLimits.of(limits)
    checked = await check_plan(raw, allowed_tools(names, tools), max_steps=limits.max_plan_steps, agents=agents)
    if isinstance(checked, ReadPlan):
        checked = unfit_for_a_job(checked) or checked
    if isinstance(checked, ReadPlan):
        return _orchestrated(raw) if checked.form is PlanForm.ORCHESTRATION else checked.plan
    raise refused_plan(checked, "" if tools else "\nNo worker has published a tool yet; is one running?")


def refused_plan(found: Sequence[PlanError], hint: str = "") -> PlanInvalid:
    refusal = PlanInvalid(format_plan_errors(found) + hint, [one.to_json() for one in found[:MAX_DEFECTS]])
    refusal.details |= left_out(len(found))
    return refusal


def _orchestrated(raw: Mapping[str, Any]) -> Plan:
    asked = {name: raw[name] for name in ("on_failure",) if raw.get(name) is not None}
    return parse_plan({"calls": [{"tool_name": ORCHESTRATE, "arguments": {"plan": dict(raw)}}], **asked})


async def agent_errors(agents: DocumentStore, tenant_id: str, raw: Any) -> list[PlanError]:
    """Return the defects of calls of agents in plans for agents, the document itself or literal arguments in it.

    Defects are unknown agents and actions, and input that does not fit. A plan with other defects has none.
    """
    found: list[PlanError] = []
    for number, arguments in orchestrations_in(raw):
        plan = read_orchestration(arguments.get("plan"))
        if not isinstance(plan, OrchestrationPlan):
            continue
        stored = await agents.in_use(tenant_id, agents_of(plan))
        found += await off_loop(_agent_errors, number, arguments, plan, stored)
    return found


def _agent_errors(
    number: int | None, arguments: Mapping[str, Any], plan: OrchestrationPlan, stored: Mapping[str, Mapping[str, Any]]
) -> list[PlanError]:
    bindings = arguments.get("bindings")
    # Without what is bound no template counts as known, nor with an output that only the call will have.
    is_known = not find_references(bindings)
    given = bindings if isinstance(bindings, Mapping) else {}
    compiled = compile_orchestration(plan, OrchestrateLimits(), given) if is_known else None
    defects = agent_defects(plan, stored, compiled if isinstance(compiled, Compiled) else None)
    if number is None:
        return [of_agents(one) for one in defects]
    return [
        PlanError(
            number,
            place_of_nested(one, arguments),
            None,
            "invalid_argument",
            {"tool_name": ORCHESTRATE, "message": capped(one.message, 300)},
        )
        for one in defects
    ]


async def submission_warnings(plan: Mapping[str, Any] | JsonText | None) -> list[dict[str, Any]]:
    """Return the warnings of a plan in its stored form; a plan without a `$` in it is not decoded."""
    if plan is None or (isinstance(plan, JsonText) and b"$" not in plan.body):
        return []
    return await off_loop(_warnings_of_stored, plan)


def _warnings_of_stored(plan: Mapping[str, Any] | JsonText) -> list[dict[str, Any]]:
    return plan_warnings([call.get("arguments") or {} for call in decoded(plan)["calls"]])


def plan_warnings(calls: Sequence[Mapping[str, Any]], form: PlanForm = PlanForm.CALLS) -> list[dict[str, Any]]:
    """Return the parts of arguments that their author probably did not mean, with their place in a plan of a form."""
    found: list[dict[str, Any]] = []
    for number, arguments in enumerate(calls):
        for argument, reference in bare_references(arguments):
            place = defect_place(PlanError(number, argument, None, BARE_REFERENCE), form)
            message = (
                f"{reference} stands in a longer text without braces, so the tool gets these letters; write "
                f"{{{{ {reference} }}}} to insert the output"
            )
            details = {"tool_index": number, "argument": argument, "reference": reference, "place": place}
            found.append({"code": BARE_REFERENCE, "message": message, "details": details})
            if len(found) == MAX_DEFECTS:
                return found
    return found


def unfit_for_a_job(document: ReadPlan) -> list[PlanError]:
    """Return the defects that only a planner may write: steps that would never run."""
    if document.dropped:
        last = len(document.plan.calls) - 1
        message = f"the {document.dropped} steps after this one would never run: nobody plans anew after its answer"
        return [invalid_plan(message, f"/steps/{last}", last)]
    return []


async def check_plan(
    raw: Any, tools: Mapping[str, ToolDefinition], *, max_steps: int, agents: OrchestrateLimits | None = None
) -> ReadPlan | Sequence[PlanError]:
    """Return the plan that `raw` is, or all its defects; a long one is checked in a thread.

    `agents` bound plans for agents, of which only the document is checked here; `agent_errors` looks up the agents.
    """
    steps = (raw.get("calls") or raw.get("steps")) if isinstance(raw, Mapping) else None
    size = len(steps) if isinstance(steps, list) else 0
    if size > max_steps:  # to check each call beside it would take a second
        return [PlanError(None, "", None, "too_many_steps", {"limit": max_steps, "actual": size})]
    if size <= _INLINE_CALLS and not is_larger(raw, INLINE_CHARS):
        return _check_plan(raw, tools, max_steps, agents)
    return await off_loop(_check_plan, raw, tools, max_steps, agents)


def _check_plan(
    raw: Any, tools: Mapping[str, ToolDefinition], max_steps: int, agents: OrchestrateLimits | None
) -> ReadPlan | Sequence[PlanError]:
    bounds = OrchestrateLimits() if agents is None else agents
    read = read_any_form(raw, limits=bounds)
    if not isinstance(read, ReadPlan):
        part = None if len(read) > _MANY_DEFECTS else readable_part_of(raw)
        further = [] if part is None else further_errors(part, tools, max_steps=max_steps, agents=bounds)
        return sorted([*read, *further], key=lambda error: inf if error.tool_index is None else error.tool_index)
    if read.form is PlanForm.ORCHESTRATION:
        return validate_plan(_orchestrated(raw), tools, max_steps=max_steps, agents=bounds) or read
    return validate_plan(read.plan, tools, max_steps=max_steps, agents=bounds) or read


def known_names(wanted: Sequence[str], tools: Mapping[str, ToolDefinition]) -> list[str]:
    """Return the registered names of the tools that a request allows, each once and in order.

    Raises `InvalidRequest` with the unknown names, and the known ones.
    """
    found = {name: resolve_name(name, tools) for name in wanted}
    unknown = [name for name, registered in found.items() if registered is None]
    if unknown:
        known = listed(sorted(tools)) or "none: is a worker running?"
        near = suggestion(unknown[0], tools)
        raise InvalidRequest(f"unknown tools {listed(unknown)}; {near}known tools are {known}")
    return list(dict.fromkeys(name for name in found.values() if name is not None))


def listed(names: Iterable[str]) -> str:
    """Return names as a message lists them, without those beyond the first hundred."""
    shown = [repr(capped(name, 80)) for name in names]
    return ", ".join(shown[:_MAX_NAMED]) + (", …" if len(shown) > _MAX_NAMED else "")


def allowed_tools(names: Sequence[str] | None, tools: Mapping[str, ToolDefinition]) -> Mapping[str, ToolDefinition]:
    """Return the tools of these registered names, all of them for None."""
    return tools if names is None else {name: tools[name] for name in names}
