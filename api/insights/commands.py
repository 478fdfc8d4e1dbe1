"""`planq insights`: what jobs have taught those after them, and whether that helps."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from planq.api.cli.connection import AsJson, CommandClient, api_command
from planq.api.cli.console import as_line, out, print_columns, print_json, print_list
from planq.shared.subjects.insights.rules import InsightKind

_Id = Annotated[str, typer.Argument(metavar="ID", help="The id that `planq insights list` shows.")]
_MEASURES = {
    "success": "success",
    "tool_failures": "failed calls",
    "rounds": "rounds",
    "seconds": "seconds",
    "cost_usd": "cost (USD)",
    "tokens": "tokens",
}


@api_command
def show_insights(
    client: CommandClient,
    retired: Annotated[bool, typer.Option("--retired", help="Those that are retired, too.")] = False,
    kind: Annotated[InsightKind | None, typer.Option(help="Those of a kind only.")] = None,
    tool: Annotated[str | None, typer.Option(help="Those on a tool only.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List what the tenant's jobs have taught, newest first."""
    chosen = {"retired": "true" if retired else None, "kind": kind, "tool": tool or None}
    found = client.pages("insights", most=limit, **chosen)
    print_list(found, _row, "nothing was learned yet; docs/insights.md says how to begin", as_json=as_json)


@api_command
def show_insight(client: CommandClient, insight_id: _Id, as_json: AsJson = False) -> None:
    """Show an insight with the newest jobs that have taught it."""
    found = client.ask("GET", "insights", insight_id)
    if as_json:
        print_json(found)
        return
    out.print(as_line(found["lesson"], 1_000))
    if found["reflection"]:
        out.print(f"a model adds: {as_line(found['reflection'], 1_000)}")
    print_columns([_row(found)[:-1]])
    for one in found["sources"]:
        one["place"] = "" if one["step_index"] is None else f"step {one['step_index']}"
    print_columns([[one["seen_at"], one["job_id"], one["place"]] for one in found["sources"]])


@api_command
def pin_insights(
    client: CommandClient,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of insights.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let them expire again.")] = False,
) -> None:
    """Keep insights for good, and offer them before others that fit."""
    _change(client, ids, {"is_pinned": not undo}, "not pinned any more" if undo else "pinned")


@api_command
def retire_insights(
    client: CommandClient,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of insights.")],
    undo: Annotated[bool, typer.Option("--undo", help="Offer them again.")] = False,
) -> None:
    """Offer insights to no planner any more, also when their lesson comes again."""
    _change(client, ids, {"is_retired": not undo}, "offered again" if undo else "retired")


@api_command
def report_insights(
    client: CommandClient,
    days: Annotated[float, typer.Option(min=0.001, max=3_650, help="Of jobs of the last so many days.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Say whether insights help: jobs whose planners saw them, beside jobs that were held out."""
    found = client.ask("GET", "insights", "report", days=days)
    if as_json:
        print_json(found)
        return
    jobs = found["jobs"]
    out.print(
        f"{found['verdict']}: {jobs['offered']} jobs with insights, {jobs['held_out']} held out, "
        f"{jobs['shadow']} in shadow; insights are {found['mode']}"
    )
    rows = [["", "with", "without", "difference", ""]]
    for name, label in _MEASURES.items():
        one = found["measures"][name]
        rows.append([label, *(_interval(one[key]) for key in ("with", "without", "difference")), one["verdict"]])
    print_columns(rows)
    if found["insights"]:
        out.print("")
    print_columns([_measured(one) for one in found["insights"]])


def _change(client: CommandClient, ids: list[str], body: dict[str, bool], state: str) -> None:
    for insight_id in ids:
        client.ask("PATCH", "insights", insight_id, body=body)
        out.print(f"insight {as_line(insight_id, 80)} is {state}")


def _row(insight: dict[str, Any]) -> list[str]:
    state = "retired" if insight["retired_at"] else "pinned" if insight["is_pinned"] else ""
    counts = f"seen {insight['seen']}, against {insight['against']}"
    return [insight["id"], insight["kind"], counts, state, as_line(insight["lesson"], 160)]


def _interval(one: dict[str, float] | None) -> str:
    return "-" if one is None else f"{one['value']:.3g} ({one['low']:.3g} to {one['high']:.3g})"


def _measured(one: dict[str, Any]) -> list[str]:
    state = "retired" if one["is_retired"] else "pinned" if one["is_pinned"] else ""
    counts = f"{one['offered']} with, {one['held_out']} without"
    return [one["id"], one["success"]["verdict"], counts, state, as_line(one["lesson"], 120)]
