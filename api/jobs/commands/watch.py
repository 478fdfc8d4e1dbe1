"""`planq watch`, `logs`: the events of a job as they happen, over connections that break, and what its model says."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planq.api.cli.connection import CommandClient, JobId, api_command
from planq.api.cli.console import as_line, err, out, print_json_line, tail_of
from planq.api.cli.outcome import INTERRUPTED, OK, end
from planq.api.jobs.commands.submit import code_of
from planq.shared.platform.values.event_stream import SpokenText

if TYPE_CHECKING:
    from planq.shared.client.following import StreamEvent

_SUBJECTS = ("index", "tool_name", "stage", "attempt", "source", "steps")
"""What is shown of an event's data where it is there, beside its error."""

Children = Annotated[bool, typer.Option("--children", help="Also the events of all jobs below it.")]
AsLines = Annotated[bool, typer.Option("--json", help="Print one JSON document a line, for programs.")]


@api_command
def watch(client: CommandClient, job_id: JobId, children: Children = False, as_json: AsLines = False) -> None:
    """Follow a job live to its end: its events, what its model says, its answer.

    Goes on where it was when a connection breaks. Exit code 1 when the job failed or was cancelled.
    """
    teller = _Lines() if as_json else _EventPrinter(str(job_id))
    job: dict[str, Any] = {}
    code = OK
    try:
        with teller:
            for event in client.api.stream(str(job_id), children=children):
                if event.kind == "job":
                    job = event.data
                teller.tell(event)
            code = code_of(job)
    except KeyboardInterrupt:
        err.print(f"\njob {job_id} goes on; `planq watch {job_id}` follows it, `planq cancel` ends it")
        end(INTERRUPTED)
    if not as_json:
        from planq.api.jobs.commands.progress import print_outcome

        print_outcome(job, out)
    end(code)


@api_command
def logs(
    client: CommandClient,
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    children: Children = False,
    as_json: AsLines = False,
) -> None:
    """Print the events of a job, oldest first."""
    teller = _Lines() if as_json else _EventPrinter(str(job_id))
    try:
        events = client.api.stream if follow else client.log
        for event in events(str(job_id), children=children):
            if event.id is not None:
                teller.tell(event)
    except KeyboardInterrupt:
        end(INTERRUPTED)


class _Lines:
    """Prints frames for programs: their names and data, one a line."""

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tell(self, event: StreamEvent) -> None:
        print_json_line({"id": event.id, "event": event.kind, "data": event.data})


class _EventPrinter:
    """Prints events as lines; on a terminal the text that is being said stands below them."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._begun: datetime | None = None
        self._spoken = SpokenText()
        self._live: Any = None
        self._open = ExitStack()

    def __enter__(self) -> _EventPrinter:
        if out.is_terminal:
            from rich.live import Live

            self._live = self._open.enter_context(Live(console=out, transient=True, refresh_per_second=8))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def tell(self, event: StreamEvent) -> None:
        """Print what an event tells, if it is new."""
        if event.id is not None:
            out.print(self._line(event.data))
        elif event.kind == "text":
            is_own = event.data["job_id"] == self._job_id
            if is_own and self._live is not None and self._spoken.add(event.data):
                self._live.update(tail_of(self._spoken.text))
        elif event.kind == "job" and self._live is not None:
            self._live.update("")

    def _line(self, event: Mapping[str, Any]) -> str:
        at = datetime.fromisoformat(event["created_at"])
        self._begun = self._begun or at
        whose = "" if event["job_id"] == self._job_id else f"{event['job_id']}  "
        return f"{(at - self._begun).total_seconds():8.2f} s  {whose}{_told(event['kind'], event['data'])}"


def _told(kind: str, data: Any) -> str:
    found = data if isinstance(data, dict) else {}
    words = [f"${found[name]}" if name == "index" else f"{found[name]}" for name in _SUBJECTS if name in found]
    error = found.get("error") if isinstance(found.get("error"), dict) else found if "message" in found else {}
    message = f": {error['message']}" if error and error.get("message") else ""
    return as_line(" ".join([kind.replace("_", " "), *words]) + message, 200)
