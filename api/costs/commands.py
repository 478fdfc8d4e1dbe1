"""`planq costs`: what models have cost, by day, agent, model or tenant."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from planq.api.cli.connection import AsJson, CommandClient, api_command
from planq.api.cli.console import as_line, err, print_columns, print_json

_NOBODY = {"agent": "(no agent)"}
_SHOWN = ("calls", "input_tokens", "cache_read_tokens", "output_tokens")


@api_command
def show_costs(
    client: CommandClient,
    by: Annotated[
        Literal["day", "agent", "model", "tenant"],
        typer.Option("--by", help="What costs are told apart by; tenant needs a key with the scope admin."),
    ] = "day",
    from_: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="The first day, as 2026-11-28 by UTC; 29 before --to.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="DAY", help="The last day; today.")] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Another tenant, or * for all: needs the scope admin.")
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Of one agent.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Of one model.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what models have cost: a line for each day, agent, model or tenant, and the sum."""
    days: dict[str, Any] = {"from": from_, "to": to}
    found = client.ask("GET", "costs", by=by, tenant=tenant, agent=agent, model=model, **days)
    if as_json:
        print_json(found)
        return
    if not found["items"]:
        err.print(f"no model was called from {found['from']} to {found['to']}")
        return
    rows = [_row(as_line(one["name"] or _NOBODY.get(by, "–"), 80), one) for one in found["items"]]
    print_columns(
        [[by, "USD", "calls", "tokens in", "from cache", "tokens out"], *rows, _row("in all", found["total"])]
    )
    if unpriced := found["total"]["unpriced_calls"]:
        err.print(f"{unpriced} of the calls went to models whose price is not known: they are not in the sum")


def _row(name: str, sums: dict[str, Any]) -> list[str]:
    cost = "–" if sums["cost_usd"] is None else f"{sums['cost_usd']:.6f}".rstrip("0").ljust(4, "0")
    return [name, cost, *(str(sums[key]) for key in _SHOWN)]
