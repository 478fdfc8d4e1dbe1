"""What models have cost: by day, agent, model or tenant."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from planq.api.access.scopes import Caller, Who
from planq.api.deps import Use, strict_router
from planq.api.http.exchange import HttpRefusal, JsonResponse
from planq.api.schemas import Answer
from planq.shared.platform.errors import InvalidRequest
from planq.shared.subjects.costs.rules import CostBy, CostQuery
from planq.shared.subjects.costs.store import SUMS
from planq.shared.subjects.tenants.config import read_tenant_id
from planq.shared.subjects.tenants.keys import KeyScope

cost_routes = strict_router("costs")

MOST_DAYS = 366
MOST_ROWS = 500
EVERY_TENANT = "*"
_USUAL_DAYS = 30
_MAX_NAME_CHARS = 300
_NO_NUL = r"^[^\x00]*$"
_Name = Annotated[
    str | None, Query(min_length=1, max_length=_MAX_NAME_CHARS, pattern=_NO_NUL, description="Of this one alone.")
]


class CostSums(Answer):
    """What models were used for, and what that cost."""

    calls: int = Field(description="Calls of models, and of tools that have a price; failed ones, too.")
    unpriced_calls: int = Field(description="Calls that used tokens whose price is not known: the cost lacks them.")
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = Field(description="The part of the input that providers read from their prompt caches.")
    cache_write_tokens: int = Field(description="The part of the input that providers stored in their prompt caches.")
    cost_usd: float | None = Field(description="Null where no price was known.")


class CostRow(CostSums):
    """The sums of one day, agent, model or tenant."""

    name: str | None = Field(
        description="The day, agent, model or tenant. Null for jobs without an agent. `other` for models beyond the "
        "first hundred that have answered."
    )


class CostReport(Answer):
    """What the days of a tenant, or of all, have cost; a few seconds late."""

    by: CostBy
    from_: date = Field(alias="from")
    to: date
    tenant: str | None = Field(description="Null for all tenants.")
    items: list[CostRow] = Field(description="Days in their order, all others the dearest first; at most 500.")
    total: CostSums = Field(description="Over all there are, also those beyond 500.")


@cost_routes.get("/costs", response_model=CostReport)
async def get_costs(
    services: Use,
    who: Who,
    by: Annotated[CostBy, Query(description="`tenant` needs a key with the scope `admin`.")] = CostBy.DAY,
    from_: Annotated[
        date | None, Query(alias="from", description="The first day, by UTC; 29 days before the last by default.")
    ] = None,
    to: Annotated[date | None, Query(description="The last day; today by default.")] = None,
    tenant: Annotated[
        str | None,
        Query(
            max_length=63,
            json_schema_extra={"pattern": r"^(\*|[a-z0-9][a-z0-9-]{0,62})$"},
            description="Another tenant's costs, or `*` for those of all: needs a key with the scope `admin`.",
        ),
    ] = None,
    agent: _Name = None,
    model: _Name = None,
) -> Response:
    """Add up what models have cost, by day, agent, model or tenant, of at most 366 days.

    Days are those of the calls, by UTC. Costs stay when retention removes the jobs. A key sees its own tenant's; one
    with the scope `admin` sees those of others, too, and of all by tenant.
    """
    last = to or datetime.now(UTC).date()
    first = from_ or last - timedelta(days=min(_USUAL_DAYS - 1, (last - date.min).days))
    if not 0 <= (last - first).days < MOST_DAYS:
        raise InvalidRequest(
            f"from, to: expected at most {MOST_DAYS} days, the first before the last; found {first} to {last}"
        )
    whose = _whose(who, by, tenant)
    wanted = CostQuery(by, first, last, agent, model)
    rows, total = await services.costs.sums(whose, wanted, MOST_ROWS)
    items = [{"name": row["name"] or None, **_sums(row)} for row in rows]
    if by is CostBy.DAY:
        items.sort(key=lambda item: item["name"])
    shown = {"by": by, "from": first.isoformat(), "to": last.isoformat(), "tenant": whose}
    return JsonResponse({**shown, "items": items, "total": _sums(total)})


def _whose(who: Caller, by: CostBy, tenant: str | None) -> str | None:
    """Return the tenant whose costs are wanted, None for all; raises `HttpRefusal` where that needs another scope."""
    asked = (EVERY_TENANT if by is CostBy.TENANT else who.tenant_id) if tenant is None else tenant
    found = asked if asked == EVERY_TENANT else read_tenant_id(asked)
    is_own = found == who.tenant_id and by is not CostBy.TENANT
    if not is_own and KeyScope.ADMIN not in who.scopes:
        raise HttpRefusal(
            403,
            "insufficient_scope",
            f"costs by tenant, and of other tenants than {who.tenant_id!r}, need a key with the scope admin",
        )
    return None if found == EVERY_TENANT else found


def _sums(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return `CostSums`; where tokens have no price, nothing that is known is no cost."""
    found = {name: row[name] for name in SUMS}
    is_unknown = found["unpriced_calls"] > 0 and not found["cost_usd"]
    return {**found, "cost_usd": None if is_unknown else float(found["cost_usd"])}
