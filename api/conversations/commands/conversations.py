"""`planq conversations`: threads of messages, and what stands in one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID

import typer

from planq.api.cli.connection import AsJson, AtMost, CommandClient, api_command
from planq.api.cli.console import as_line, print_columns, print_list, print_page, tell_of_more

_SHOWN = 400
"""Characters that are shown of a row."""


@api_command
def show_conversations(
    client: CommandClient,
    channel: Annotated[str | None, typer.Option(help="Only those of this channel.")] = None,
    limit: AtMost = 100,
    as_json: AsJson = False,
) -> None:
    """List conversations, newest first."""
    page = client.pages("conversations", most=limit, channel=channel)
    print_list(page, _row, "there are no conversations", as_json=as_json)


@api_command
def show_conversation(
    client: CommandClient,
    conversation_id: Annotated[UUID, typer.Argument(metavar="ID", help="The id that `list` shows.")],
    limit: AtMost = 200,
    as_json: AsJson = False,
) -> None:
    """Show what stands last in a conversation, oldest first: messages, calls of tools and their responses."""
    page = client.pages("conversations", conversation_id, "messages", most=limit)
    page = replace(page, items=page.items[::-1])
    if as_json:
        print_page(page)
        return
    tell_of_more(page)
    print_columns([_message(one) for one in page.items])


def _row(one: dict[str, Any]) -> list[str]:
    stands = "closed" if one["is_closed"] else "active" if one["active_job_id"] else ""
    counted = f"{one['messages_in']} in, {one['messages_out']} out"
    return [one["id"], as_line(one["channel"], 60), as_line(one["thread"], 60), counted, stands]


def _message(one: dict[str, Any]) -> list[str]:
    what = one["direction"] if one["kind"] == "message" else one["kind"]
    content = one["text"] if one["kind"] == "message" else json.dumps(one["content"], ensure_ascii=False)
    turn = "" if one["turn"] is None else str(one["turn"])
    return [turn, what, one["status"] if one["status"] != "done" else "", as_line(content, _SHOWN)]
