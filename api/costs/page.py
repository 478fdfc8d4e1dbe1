"""What models have cost: a picture and a table of it, by day, agent, model or tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Who
from planq.api.costs.routes import get_costs
from planq.api.deps import Use
from planq.api.page.rendering import is_open, page, page_url
from planq.api.page.route import page_router, values_of
from planq.api.page.words import bars_of
from planq.shared.platform.errors import InvalidRequest
from planq.shared.subjects.costs.rules import CostBy

cost_page_routes = page_router()

_MEASURES = {"cost": "Cost", "tokens": "Tokens", "calls": "Calls"}
_WIDTH, _HEIGHT = 1_000.0, 120.0
_LEAST = 2.0
"""A bar of what is little beside the rest is still seen."""
_DRILLED = {CostBy.DAY: CostBy.AGENT, CostBy.AGENT: CostBy.DAY, CostBy.MODEL: CostBy.DAY, CostBy.TENANT: CostBy.DAY}
"""By what a row is looked into that somebody follows."""

_Text = Annotated[str, Query(max_length=300)]


@cost_page_routes.get("/ui/costs")
async def costs_page(
    request: Request,
    services: Use,
    who: Who,
    by: _Text = "",
    from_: Annotated[str, Query(alias="from", max_length=40)] = "",
    to: _Text = "",
    tenant: _Text = "",
    agent: _Text = "",
    model: _Text = "",
    measure: _Text = "",
) -> Response:
    found = CostBy(by) if by in set(CostBy) else CostBy.DAY
    report = values_of(
        await get_costs(
            services,
            who,
            by=found,
            from_=_day(from_),
            to=_day(to),
            tenant=tenant or None,
            agent=agent or None,
            model=model or None,
        )
    )
    chosen = {"by": str(found), "from": report["from"], "to": report["to"]}
    chosen |= {"tenant": tenant, "agent": agent, "model": model}
    shown = measure if measure in _MEASURES else "cost" if report["total"]["cost_usd"] else "tokens"
    rows = _rows(report["items"], shown, chosen, found)
    sees_all = is_open(who, "/tenants")
    is_unpriced = shown == "cost" and rows and all(one["cost_usd"] is None for one in rows)
    return page(
        request,
        "costs.html",
        report=report,
        chosen={**chosen, "measure": shown},
        measures=_MEASURES,
        kinds=[str(one) for one in CostBy if sees_all or one is not CostBy.TENANT],
        sees_all=sees_all,
        rows=rows[::-1] if found is CostBy.DAY else rows,
        bars=_bars(report, shown) if found is CostBy.DAY else None,
        most=None if is_unpriced else max((row["amount"] for row in rows), default=0),
        left_out=[
            {"name": name, "value": chosen[name], "href": _address({**chosen, name: ""}, shown)}
            for name in ("tenant", "agent", "model")
            if chosen[name]
        ],
    )


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise InvalidRequest("expected a day as 2026-11-28, found something else") from None


def _amount(sums: Mapping[str, Any], measure: str) -> float:
    if measure == "tokens":
        return float(sums["input_tokens"] + sums["output_tokens"])
    return float(sums["calls"] if measure == "calls" else sums["cost_usd"] or 0)


def _rows(
    items: Sequence[dict[str, Any]], measure: str, chosen: Mapping[str, str], by: CostBy
) -> list[dict[str, Any]]:
    whole = max((_amount(one, measure) for one in items), default=0) or 1
    return [
        {
            **one,
            "amount": _amount(one, measure),
            "bars": bars_of([("run", _amount(one, measure))], whole),
            "href": None if one["name"] is None else _address({**chosen, **_into(by, one["name"])}, measure),
        }
        for one in items
    ]


def _into(by: CostBy, name: str) -> dict[str, str]:
    own = {"from": name, "to": name} if by is CostBy.DAY else {str(by): name}
    return {"by": str(_DRILLED[by]), **own}


def _bars(report: Mapping[str, Any], measure: str) -> list[dict[str, Any]]:
    """Return a bar for each day from the first to the last, also for those on which nothing was used."""
    first, last = date.fromisoformat(report["from"]), date.fromisoformat(report["to"])
    amounts = {one["name"]: _amount(one, measure) for one in report["items"]}
    days = [(first + timedelta(days=number)).isoformat() for number in range((last - first).days + 1)]
    most, width = max(amounts.values(), default=0) or 1, _WIDTH / len(days)
    return [
        {
            "day": day,
            "x": round(place * width + width * 0.1, 2),
            "width": round(width * 0.8, 2),
            "height": (height := max(round(_HEIGHT * amount / most, 1), _LEAST) if amount else 0.0),
            "y": round(_HEIGHT - height, 1),
        }
        for place, day in enumerate(days)
        for amount in [amounts.get(day, 0.0)]
    ]


def _address(chosen: Mapping[str, str], measure: str) -> str:
    given = {name: value for name, value in {**chosen, "measure": measure}.items() if value}
    return page_url(f"/costs?{urlencode(given)}")
