"""`planq endpoints` and `planq deliveries`: where a tenant is told of what, and what became of that."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from planq.api.cli.connection import AsJson, CommandClient, api_command
from planq.api.cli.console import as_line, err, out, print_items, print_json, print_result, print_rows

_Id = Annotated[str, typer.Argument(metavar="ID", help="The id that `planq endpoints list` shows.")]
_Events = Annotated[
    list[str] | None,
    typer.Option("--event", metavar="NAME", help="An event, or all of a kind: job.*; may be repeated."),
]


@api_command
def show_endpoints(client: CommandClient, as_json: AsJson = False) -> None:
    """List the endpoints of the tenant, newest first."""
    found = client.pages("endpoints").items
    print_items({"items": found}, _endpoint_row, "there is no endpoint", as_json=as_json)


@api_command
def add_endpoint(
    client: CommandClient,
    target: Annotated[str, typer.Argument(metavar="URL", help="A public http or https address.")],
    event: _Events = None,
    description: Annotated[str, typer.Option(help="What people call it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Add an endpoint, which is told of all events of jobs, batches and channels unless some are named.

    Its secret is shown now and never again.
    """
    body = {"url": target, "events": event or ["job.*", "batch.*", "channel.*"], "description": description}
    made = client.ask("POST", "endpoints", body=body)
    if as_json:
        print_json(made)
        return
    err.print(f"endpoint {made['id']} is told of {', '.join(made['events'])}; its secret:")
    out.print(made["secret"])


@api_command
def update_endpoint(
    client: CommandClient,
    endpoint_id: _Id,
    target: Annotated[str | None, typer.Option("--to", metavar="URL", help="Another address.")] = None,
    event: _Events = None,
    disable: Annotated[
        bool | None, typer.Option("--disable/--enable", help="Tell it nothing any more, or again.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change what is named of an endpoint."""
    given = {"url": target, "events": event or None, "is_disabled": disable}
    body = {name: value for name, value in given.items() if value is not None}
    if not body:
        raise typer.BadParameter("expected --to, --event, --disable or --enable")
    changed = client.ask("PATCH", "endpoints", endpoint_id, body=body)
    print_rows(changed, [_endpoint_row(changed)], as_json=as_json)


@api_command
def remove_endpoint(client: CommandClient, endpoint_id: _Id) -> None:
    """Remove an endpoint with its secrets and the log of its deliveries."""
    client.remove("endpoints", endpoint_id)
    out.print(f"endpoint {as_line(endpoint_id, 80)} removed")


@api_command
def rotate_endpoint_secret(client: CommandClient, endpoint_id: _Id, as_json: AsJson = False) -> None:
    """Make another secret for an endpoint, and show it; the one before signs too for 24 hours."""
    made = client.ask("POST", "endpoints", endpoint_id, "rotate")
    print_result(made, made["secret"], as_json=as_json)


@api_command
def show_callback_secret(
    client: CommandClient,
    rotate: Annotated[bool, typer.Option("--rotate", help="Make another one first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what signs a delivery to a job's or batch's callback_url."""
    made = client.ask("POST", "webhook-secret", "rotate") if rotate else client.ask("GET", "webhook-secret")
    print_result(made, made["secret"], as_json=as_json)


@api_command
def show_inbound_secret(
    client: CommandClient,
    rotate: Annotated[bool, typer.Option("--rotate", help="Make another one first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what signs a post of your own system to a channel of the kind webhook."""
    path = ("webhook-secret", "inbound")
    made = client.ask("POST", *path, "rotate") if rotate else client.ask("GET", *path)
    print_result(made, made["secret"], as_json=as_json)


@api_command
def try_endpoint(client: CommandClient, endpoint_id: _Id, as_json: AsJson = False) -> None:
    """Send an endpoint the event endpoint.test; `planq deliveries list` says what became of it."""
    delivery = client.ask("POST", "endpoints", endpoint_id, "test")
    print_rows(delivery, [_delivery_row(delivery)], as_json=as_json)


@api_command
def show_deliveries(
    client: CommandClient,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="pending, sending, sent, uncertain or failed.")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(metavar="ID", help="Only those to this endpoint.")] = None,
    job: Annotated[str | None, typer.Option(metavar="ID", help="Only those of this job.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List deliveries, newest first, with what became of each."""
    found = client.ask("GET", "deliveries", status=status, endpoint=endpoint, job=job, limit=limit)
    print_items(found, _delivery_row, "nothing was to be delivered", as_json=as_json)


@api_command
def retry_deliveries(
    client: CommandClient, ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of deliveries.")]
) -> None:
    """Send deliveries at once: those that wait, and anew those that have ended, each under the id that it has."""
    for delivery_id in ids:
        client.ask("POST", "deliveries", delivery_id, "redeliver")
        out.print(f"delivery {as_line(delivery_id, 80)} is sent again")


def _endpoint_row(endpoint: dict[str, Any]) -> list[str]:
    state = endpoint["disabled_reason"] or "disabled" if endpoint["is_disabled"] else "enabled"
    events = ", ".join(endpoint["events"])
    named = as_line(endpoint["description"], 40)
    return [endpoint["id"], as_line(state, 60), as_line(endpoint["url"], 80), events, named]


def _delivery_row(delivery: dict[str, Any]) -> list[str]:
    error = delivery["error"]
    message = "" if error is None else f"{error['code']}: {error['message']}"
    attempts = f"attempt {delivery['attempt']}"
    target = as_line(delivery["url"] or f"channel {delivery['channel']}", 60)
    return [delivery["id"], delivery["status"], delivery["event"], attempts, target, as_line(message, 100)]
