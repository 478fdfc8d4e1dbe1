"""`planq chat` and `planq conversations`: talk with an agent, list conversations, and show one.

In a chat each line is a message, and its turn is followed live: steps on standard error, the answer on standard
output. A question to the person at the terminal is asked in place. Lines from a pipe are sent one by one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from planq.api.cli.connection import AsJson, AtMost, CommandClient, api_command
from planq.api.cli.console import (
    as_line,
    err,
    out,
    plain,
    preview_of,
    print_columns,
    print_list,
    print_page,
    tail_of,
    tell_of_more,
)
from planq.api.cli.outcome import INTERRUPTED, NOT_OK, OK, end
from planq.shared.platform.errors import PlanqError
from planq.shared.platform.values.event_stream import SpokenText

if TYPE_CHECKING:
    from planq.shared.client.following import StreamEvent
    from planq.shared.client.requests import MessageFields
    from planq.shared.client.wire import Json


_BYE = ("/quit", "/exit")
_ATTACH = "/attach "
_LONGEST = 200


@api_command
def chat(
    client: CommandClient,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME[@VERSION]", help="Whose turns they are; else the tenant's agent's.")
    ] = None,
    conversation: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with this conversation; else a new one begins.")
    ] = None,
    person: Annotated[str, typer.Option("--as", metavar="NAME", help="Who speaks; tools are given it.")] = "cli",
    channel: Annotated[str, typer.Option(help="One of the tenant's channels.")] = "api",
    tenant: Annotated[str, typer.Option(help="The tenant of the key.")] = "default",
) -> None:
    """Talk with an agent: a line is a message, and Ctrl-D, /quit or /exit ends the talk.

    `/attach FILE` adds an image, a file or audio, also by URL, to the next message. Ctrl-C leaves a turn
    alone; it goes on. Exit code 1 when the last turn failed.
    """
    said: MessageFields = {"tenant_id": tenant, "channel": channel, "sender": person}
    if conversation is None:
        fields = {"channel": channel, **({} if agent is None else {"agent": agent})}
        made = client.ask("POST", "conversations", body=fields)
        conversation = str(made["id"])
    elif agent is not None:
        said["agent"] = agent
    said["conversation_id"] = conversation
    err.print(f"conversation {conversation}", style="dim")
    is_well, attached = True, list[str]()
    for line in _lines():
        if line.startswith(_ATTACH):
            attached.append(line.removeprefix(_ATTACH).strip())
            continue
        try:
            sent, attached = attached, []
            is_well = _Turn(client, person).have(client.say(line, {**said, "attachments": sent}))
        except KeyboardInterrupt:
            err.print("\nthe turn goes on; its answer stands in the conversation", style="dim")
        except PlanqError as error:
            if not sys.stdin.isatty():
                raise
            err.print(plain(error.message), style="red")  # the talk goes on: the next line may be better
            is_well = False
    end(OK if is_well else NOT_OK)


def _lines() -> Iterator[str]:
    """Yield what is typed or comes through the pipe, without what says nothing, to its end or the word for it."""
    while True:
        try:
            line = _line("> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            end(INTERRUPTED)
        if line.strip() in _BYE:
            return
        if line.strip():
            yield line


def _line(prompt: str) -> str:
    """Return the next line; `prompt` is shown where somebody types it. Raises `EOFError` at the end."""
    if sys.stdin.isatty():
        err.print(prompt, end="", style="bold")
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n")


class _Turn:
    """Follows one turn to its end: tells its steps, shows what is said, and asks what it asks."""

    def __init__(self, client: CommandClient, person: str) -> None:
        self._client = client
        self._person = person
        self._spoken = SpokenText()
        self._live: Any = None
        self._asked: set[str] = set()

    def have(self, stored: Json) -> bool:
        """Follow the job that answers a stored message; returns whether it has succeeded."""
        job_id: str = stored["job_id"]
        job: Json = {}
        with ExitStack() as opened:
            self._show(opened)
            for event in self._client.api.stream(job_id, children=True):
                if event.kind == "job":
                    job = event.data
                elif event.kind == "step_asking":
                    self._hide()
                    self._ask(event.data["data"].get("elicitation"))
                    self._show(opened)
                else:
                    self._tell(job_id, event)
            self._hide()
        if job.get("answer"):
            out.print(plain(str(job["answer"])))
        elif job.get("preview"):
            out.print(plain(preview_of(job)))
        if job.get("status") == "completed":
            return True
        error = job.get("error") or {}
        err.print(as_line(f"{job.get('status')}: {error.get('message') or 'the turn was ended'}", 500), style="red")
        return False

    def _show(self, opened: ExitStack) -> None:
        if out.is_terminal:
            from rich.live import Live

            self._live = opened.enter_context(Live(console=out, transient=True, refresh_per_second=8))

    def _hide(self) -> None:
        if self._live is not None:
            self._live.update("")
            self._live.stop()
            self._live = None

    def _tell(self, job_id: str, event: StreamEvent) -> None:
        if event.kind == "text":
            if event.data["job_id"] == job_id and self._live is not None and self._spoken.add(event.data):
                self._live.update(tail_of(self._spoken.text))
            return
        data = event.data["data"] if isinstance(event.data["data"], Mapping) else {}
        below = "" if event.data["job_id"] == job_id else "  "
        if event.kind == "step_started" and data.get("attempt") == 1:
            err.print(f"{below}· {as_line(data.get('tool_name'), _LONGEST)}", style="dim")
        elif event.kind == "step_failed":
            error = data.get("error") or {}
            err.print(f"{below}· failed: {as_line(error.get('message'), _LONGEST)}", style="red")

    def _ask(self, question_id: str | None) -> None:
        """Ask what a step asks, once; what is asked of others, or of nobody here, is told."""
        if question_id is None or question_id in self._asked:
            return
        self._asked.add(question_id)
        question = self._client.ask("GET", "elicitations", question_id)
        if question["status"] != "open":
            return
        if question["kind"] == "outcome":
            command = f"planq settle {question['job_id']} {question['step_index']}"
            err.print(f"{as_line(question['message'], 500)}\n  {command} happened --output JSON | did-not-happen")
            return
        if question["asked_of"] == "operator":
            err.print(f"this waits for others: {as_line(question['message'], 500)}", style="yellow")
            return
        self._answer(question)

    def _answer(self, question: Json) -> None:
        from planq.api.cli.form import content_asked_for

        body: Json = {"channel": "cli", "by": self._person}
        try:
            if question["kind"] == "approval":
                err.print(as_line(question["message"], 2_000), style="yellow")
                for name, value in (question["details"] or {}).items():
                    err.print(f"  {as_line(name, 60)}: {as_line(value, 300)}", style="dim")
                body |= {"action": "accept", "content": {}} if self._is_agreed() else {"action": "decline"}
            else:
                body |= {"action": "accept", "content": content_asked_for(question)}
        except (EOFError, typer.Abort):
            body |= {"action": "cancel", "reason": "nobody answers any more"}
        try:
            self._client.ask("POST", "elicitations", question["id"], body=body)
        except PlanqError as error:  # somebody was faster, or may not answer
            err.print(as_line(error.message, 500), style="red")

    @staticmethod
    def _is_agreed() -> bool:
        while True:
            word = _line("yes or no? ").strip().lower()
            if word in _YES or word in _NO:
                return word in _YES
            err.print("expected yes or no", style="yellow")


_YES, _NO = ("y", "yes", "ok"), ("n", "no")


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
