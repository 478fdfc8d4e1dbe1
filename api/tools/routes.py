"""What jobs are made of: tools, and plans to be checked against them."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from planq.api.access.scopes import Who
from planq.api.deps import Use, strict_router
from planq.api.http.exchange import MAX_DEFECTS, JsonResponse, error_responses, left_out, shown_defects
from planq.api.intake.plan_checks import (
    agent_errors,
    allowed_tools,
    check_plan,
    known_names,
    plan_warnings,
    unfit_for_a_job,
)
from planq.api.schemas import ToolList, ValidationRequest, ValidationResult
from planq.shared.agentic.orchestration.request import OrchestrateLimits
from planq.shared.agentic.plan.forms import PlanForm, ReadPlan, defect_place, form_of
from planq.shared.platform.computing import off_loop

catalogue_routes = strict_router("catalogue")


@catalogue_routes.get("/tools", response_model=ToolList)
async def list_tools(services: Use, who: Who) -> Response:
    """List the tools that workers have published: with schemas, effect class, pool, timeout and retries."""
    known = await services.catalogue.renewed(who.tenant_id)
    return JsonResponse({"items": [definition.model_dump(mode="json") for definition in known.values()]})


@catalogue_routes.post("/plans/validate", response_model=ValidationResult, responses=error_responses(400, 413, 415))
async def validate_plan(body: ValidationRequest, services: Use, who: Who) -> Response:
    """Check a plan against the published tools and report everything that is wrong with it; nothing is stored.

    It may be written in each of the forms that docs/plans.md lists, plans for agents among them.
    """
    known = await services.catalogue.renewed(who.tenant_id)
    allowed = allowed_tools(None if body.tools is None else known_names(body.tools, known), known)
    limits = OrchestrateLimits.of((await services.tenants.of(who.tenant_id)).limits)
    checked = await check_plan(body.plan, allowed, max_steps=services.settings.limits.max_plan_steps, agents=limits)
    dropped, form = 0, form_of(body.plan)
    warnings: list[dict[str, Any]] = []
    if isinstance(checked, ReadPlan):
        if form is not PlanForm.ORCHESTRATION:  # whose texts insert nothing but by braces
            warnings = await off_loop(plan_warnings, [call.arguments for call in checked.plan.calls], form)
        dropped = checked.dropped
        wrong = await agent_errors(services.agents, who.tenant_id, body.plan)
        checked = [*unfit_for_a_job(checked), *wrong] or checked
    if isinstance(checked, ReadPlan):
        return JsonResponse({"valid": True, "form": form, "dropped": 0, "errors": [], "warnings": warnings})
    listed = checked[:MAX_DEFECTS]
    errors = shown_defects([{**error.to_json(), "place": defect_place(error, form)} for error in listed])
    return JsonResponse(
        {
            "valid": False,
            "form": form,
            "dropped": dropped,
            "errors": errors,
            "warnings": warnings,
            **left_out(len(checked)),
        }
    )
