"""`planq schedules`: the reminders that jobs have scheduled."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from planq.api.cli.connection import AsJson, CommandClient, api_command
from planq.api.cli.console import as_line, out, print_items


@api_command
def show_schedules(
    client: CommandClient,
    everything: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the reminders that are to come, newest first, with what the last job of each came to."""
    found = client.pages("schedules", all="true" if everything else None).items
    print_items({"items": found}, _row, "nothing is scheduled", as_json=as_json)


@api_command
def delete_schedules(
    client: CommandClient, ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of schedules.")]
) -> None:
    """Remove reminders; the jobs that they made stay."""
    for schedule_id in ids:
        client.remove("schedules", schedule_id)
        out.print(f"schedule {as_line(schedule_id, 80)} deleted")


def _row(schedule: dict[str, Any]) -> list[str]:
    how_often = f"{schedule['cron']} {schedule['timezone']}" if schedule["cron"] else "once"
    when = schedule["next_at"] or schedule["error"] or "over"
    agent = f"agent {schedule['agent']}" if schedule["agent"] else ""
    last = f"last {schedule['last_outcome']}" if schedule["last_outcome"] else ""
    return [schedule["id"], as_line(when, 60), how_often, last, agent, as_line(schedule["name"], 60)]
