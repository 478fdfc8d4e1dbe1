"""`planq batch`: many requests in one file, from its upload to its results.

Progress goes to standard error, a bar on a terminal and a line for each change elsewhere; lines of results and errors
go to standard output as they come.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from planq.api.cli.connection import AsJson, AtMost, CommandClient, To, api_command
from planq.api.cli.console import as_line, err, out, print_json, print_list, print_result, shown_cost, write_pieces
from planq.api.cli.outcome import INTERRUPTED, NOT_OK, OK, PARTIAL, RESTS, end
from planq.shared.platform.values.encoding import encode
from planq.shared.subjects.batches.rules import BatchStatus, LineStatus

if TYPE_CHECKING:
    from rich.progress import Progress

    from planq.shared.client.wire import Json

_POLL_SECONDS = 0.5
_PIECE_BYTES = 256 * 1024

BatchId = Annotated[str, typer.Argument(metavar="ID", help="The batch's id.")]
_File = Annotated[str, typer.Argument(metavar="FILE|-", help="One JSON object a line: {custom_id, body}.")]
_Defaults = Annotated[
    str | None, typer.Option(metavar="JSON|@FILE", help="Fields of each line's body that has not its own.")
]
_Budget = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=NUMBER", help="max_cost_usd or max_tokens of all its jobs; repeatable."),
]
_Metadata = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Kept with it; repeatable.")]
_Key = Annotated[str | None, typer.Option(help="Sending the file again with the same key gives the same batch.")]


@api_command
def send_file(
    client: CommandClient,
    file: _File,
    name: Annotated[str | None, typer.Option(help="What people call it.")] = None,
    defaults: _Defaults = None,
    priority: Annotated[str | None, typer.Option(metavar="interactive|bulk", help="That of its jobs.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Run nothing if a line is invalid.")] = False,
    canary: Annotated[int | None, typer.Option(min=1, help="Run so many lines, then wait for `resume`.")] = None,
    discount: Annotated[
        str | None, typer.Option(metavar="provider", help="Half price: single calls wait up to 24 hours.")
    ] = None,
    budget: _Budget = None,
    callback_url: Annotated[str | None, typer.Option(help="Where its end is told: a signed webhook.")] = None,
    metadata: _Metadata = None,
    start: Annotated[bool, typer.Option(help="Without it, validate and estimate alone.")] = True,
    idempotency_key: _Key = None,
    wait: Annotated[bool, typer.Option(help="Tell its progress and wait for its end.")] = True,
    as_json: AsJson = False,
) -> None:
    """Send a file of requests and follow the batch to its end.

    Exit code 1 unless every line completes, 3 where all do and some are partial, 4 where it is paused and waits for
    `resume`. With --no-wait it prints the batch's id and returns at once; with --no-start it tells the estimate.
    """
    params = {
        **({} if name is None else {"name": name}),
        **({} if priority is None else {"priority": priority}),
        **({} if canary is None else {"canary": str(canary)}),
        **({} if discount is None else {"discount": discount}),
        **({} if callback_url is None else {"callback_url": callback_url}),
        **({"strict": "true"} if strict else {}),
        **({} if start else {"start": "false"}),
        **_documents(defaults, metadata),
        **_limits(budget),
    }
    with _opened(file) as (stream, size):
        lines = _sending(stream, size)
        batch = client.send_batch(lines, size, params, idempotency_key=idempotency_key)
    if wait:
        _watch(client, batch, as_json=as_json, may_rest=not start)
    if as_json:
        print_json(batch)
        return
    out.print(batch["id"])
    err.print(f"submitted; `planq batch watch {batch['id']}` follows it", style="dim")


@api_command
def show_status(client: CommandClient, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Show where a batch stands: its lines by how they ended, its cost, and what it waits for.

    Exit code 0 while it goes on; else as `planq batch watch` ends.
    """
    batch = client.ask("GET", "batches", batch_id)
    if as_json:
        print_json(batch)
    else:
        _tell_end(batch)
    end(_code_of(batch) if _stands_still(batch) else OK)


@api_command
def watch_batch(client: CommandClient, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Follow a batch until it has ended, or waits for `resume`.

    Exit code 1 unless every line completed, 3 where all did and some are partial, 4 where it is paused.
    """
    _watch(client, client.ask("GET", "batches", batch_id), as_json=as_json)


@api_command
def print_results(
    client: CommandClient,
    batch_id: BatchId,
    to: To = None,
    order: Annotated[
        str, typer.Option(metavar="input|completion", help="That of the file, or as they ended.")
    ] = "input",
    status: Annotated[str | None, typer.Option(metavar="completed|failed", help="Only lines that ended so.")] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="Maximum size of one output, 64 MiB by default; a larger one fails.")
    ] = None,
) -> None:
    """Print the results of the lines that have ended, a line of JSON each, every output whole."""
    from planq.shared.client.clients import BatchHandle
    from planq.shared.client.requests import MAX_RESULT_BYTES

    params = {"order": order} | ({} if status is None else {"status": status})
    lines = BatchHandle(client.api, {"id": batch_id}).results(max_bytes=max_bytes or MAX_RESULT_BYTES, **params)
    write_pieces(map(_as_line, lines), to)


@api_command
def print_errors(client: CommandClient, batch_id: BatchId, to: To = None) -> None:
    """Print what is wrong with lines, a line of JSON each: invalid, or its job failed or is partial."""
    with client.opened("batches", batch_id, "errors") as response:
        write_pieces(response.iter_bytes(), to)


@api_command
def ask_retry(client: CommandClient, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Run the failed and the partial lines of a batch again."""
    _ask(client, batch_id, "retry", as_json=as_json)


@api_command
def ask_cancel(client: CommandClient, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Begin nothing more of a batch, and cancel what runs; results stay."""
    _ask(client, batch_id, "cancel", as_json=as_json)


@api_command
def ask_pause(client: CommandClient, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Begin nothing more of a batch; what runs goes on to its end."""
    _ask(client, batch_id, "pause", as_json=as_json)


@api_command
def ask_resume(client: CommandClient, batch_id: BatchId, budget: _Budget = None, as_json: AsJson = False) -> None:
    """Let a paused batch go on, also with a larger budget."""
    body = {name: json.loads(value) for name, value in _limits(budget).items()}
    _ask(client, batch_id, "resume", body, as_json=as_json)


@api_command
def show_batches(client: CommandClient, limit: AtMost = 100, as_json: AsJson = False) -> None:
    """List batches, newest first."""
    page = client.pages("batches", most=limit)

    def row(batch: Json) -> list[str]:
        return [batch["id"], shown_batch_status(batch), _ended(batch), as_line(batch["name"], 60)]

    print_list(page, row, "there are no batches", as_json=as_json)


def shown_batch_status(batch: Json) -> str:
    """Return a batch's status, and why it is paused."""
    return f"{batch['status']}, paused ({batch['pause_reason']})" if batch["paused_at"] else str(batch["status"])


def summary(batch: Json) -> str:
    """Return in one line where a batch stands: its status, its lines by how they ended, its cost."""
    counts = batch["counts"]
    named = [*(str(status) for status in (LineStatus.COMPLETED, LineStatus.FAILED, LineStatus.CANCELLED)), "invalid"]
    parts = ", ".join(f"{counts[name]} {name}" for name in ("partial", "incomplete") if counts[name])
    partial = {"completed": f" ({parts})"} if parts else {}
    counted = [f"{counts[name]} {name}{partial.get(name, '')}" for name in named if counts[name]]
    spent = shown_cost({"cost_usd": batch["cost_usd"], "input_tokens": batch["tokens"]})
    cost = [spent] if spent else []
    if counts.get("deferred"):  # an older API has none
        counted.append(f"{counts['deferred']} at the provider")
    return f"{shown_batch_status(batch)}: {', '.join([f'{_ended(batch)} lines', *counted, *cost])}"


_ESTIMATED = ("least_cost_usd", "most_cost_usd")


def estimate_line(batch: Json) -> str | None:
    """Return in one line what a batch is taken to use; None before that is known."""
    estimate = batch["estimate"]
    if estimate is None:
        return None
    least, most = ("–" if one is None else f"{one:.4f}" for one in map(estimate.get, _ESTIMATED))
    cost = f"{least} USD" if least == most else f"{least} to {most} USD"
    unpriced = f"; without a known price: {estimate['unpriced_lines']}" if estimate["unpriced_lines"] else ""
    return (
        f"estimate: {estimate['model_calls']} model calls, {estimate['input_tokens']} tokens asked, {cost}{unpriced}"
    )


def follow_batch(client: CommandClient, batch: Json, show: Callable[[Json], None]) -> Json:
    """Show a batch at each change until it has ended, or rests, and return it; raises as `batch` does."""
    shown = None
    while True:
        if shown != (now := (batch["status"], batch["paused_at"], batch["counts"])):
            shown = now
            show(batch)
        if _stands_still(batch):
            return batch
        time.sleep(_POLL_SECONDS)
        batch = client.ask("GET", "batches", batch["id"])


def _rests(batch: Json) -> bool:
    is_begun = batch["status"] == BatchStatus.IN_PROGRESS
    return bool(batch["paused_at"]) and is_begun and not batch["counts"]["running"]


def _stands_still(batch: Json) -> bool:
    return BatchStatus(batch["status"]).is_terminal or _rests(batch)


def _code_of(batch: Json) -> int:
    counts = batch["counts"]
    if _rests(batch):
        return RESTS
    if batch["status"] == BatchStatus.COMPLETED and counts["completed"] == counts["total"]:
        return PARTIAL if counts["partial"] or counts["incomplete"] else OK
    return NOT_OK


def _watch(client: CommandClient, batch: Json, *, as_json: bool, may_rest: bool = False) -> None:
    try:
        if as_json:
            batch = follow_batch(client, batch, lambda _: None)
            print_json(batch)
        elif err.is_terminal:
            with _bar() as bar:
                task = bar.add_task(batch["status"], total=None)
                batch = follow_batch(client, batch, lambda one: _advance(bar, task, one))
            _tell_end(batch)
        else:
            batch = follow_batch(client, batch, lambda one: err.print(summary(one)))
            _tell_end(batch)
    except KeyboardInterrupt:
        err.print(f"\nbatch {batch['id']} goes on; `planq batch watch {batch['id']}` follows it")
        end(INTERRUPTED)
    end(OK if may_rest and _rests(batch) else _code_of(batch))


def _tell_end(batch: Json) -> None:
    if (estimate := estimate_line(batch)) is not None and not batch["counts"]["completed"]:
        err.print(estimate, style="dim")
    if batch["error"]:
        err.print(f"{batch['error']['code']}: {batch['error']['message']}", style="red")
    out.print(f"batch {batch['id']} {summary(batch)}")
    if _rests(batch):
        err.print(f"`planq batch resume {batch['id']}` lets it go on", style="dim")
    elif batch["counts"]["completed"]:
        err.print(f"`planq batch results {batch['id']}` prints what came of it", style="dim")


def _bar() -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.description}", markup=False)
    return Progress(words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=err, transient=True)


def _advance(bar: Progress, task: Any, batch: Json) -> None:
    counts = batch["counts"]
    if batch["status"] == BatchStatus.VALIDATING:
        bar.update(task, total=counts["total"], completed=counts["total"] - counts["unvalidated"])
    else:
        ended = counts["completed"] + counts["failed"] + counts["cancelled"]
        bar.update(task, total=counts["total"] - counts["invalid"], completed=ended)
    poor = "".join(f", {counts[name]} {name}" for name in ("partial", "incomplete", "failed") if counts[name])
    eta = f", {batch['eta_seconds']:.0f} s left" if batch["eta_seconds"] is not None else ""
    bar.update(task, description=f"{shown_batch_status(batch)}{poor}{eta}")


def _ended(batch: Json) -> str:
    counts = batch["counts"]
    return f"{counts['completed'] + counts['failed'] + counts['cancelled']}/{counts['total'] - counts['invalid']}"


def _ask(client: CommandClient, batch_id: str, action: str, body: Json | None = None, *, as_json: bool) -> None:
    batch = client.ask("POST", "batches", batch_id, action, body=body)
    print_result(batch, f"batch {batch['id']} {summary(batch)}", as_json=as_json)


def _as_line(line: Json) -> bytes:
    try:
        return encode(line) + b"\n"
    except ValueError:  # a lone surrogate: JSON can only hold it escaped
        return json.dumps(line).encode() + b"\n"


def _documents(defaults: str | None, metadata: list[str] | None) -> dict[str, str]:
    from planq.api.cli.inputs import json_or_file, pairs_of

    given = {} if defaults is None else {"defaults": json.dumps(json_or_file(defaults, "--defaults"))}
    return given | ({"metadata": json.dumps(dict(pairs_of(metadata, "--metadata")))} if metadata else {})


def _limits(budget: list[str] | None) -> dict[str, str]:
    from planq.api.cli.inputs import number, pairs_of

    known = ("max_cost_usd", "max_tokens")
    pairs = pairs_of(budget or (), "--budget")
    for name, _ in pairs:
        if name not in known:
            raise typer.BadParameter(f"expected {' or '.join(known)}, found {name[:80]!r}", param_hint="--budget")
    return {name: str(number(name, value, "--budget")) for name, value in pairs}


@contextmanager
def _opened(file: str) -> Iterator[tuple[BinaryIO, int | None]]:
    from planq.api.cli.inputs import STANDARD_INPUT
    from planq.shared.platform.errors import Misconfigured

    if file == STANDARD_INPUT:
        yield sys.stdin.buffer, None
        return
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise Misconfigured(f"the file: cannot read {file!r} ({error.strerror})") from error
        yield stream, os.fstat(stream.fileno()).st_size or None  # a pipe has none


def _sending(stream: BinaryIO, size: int | None) -> Iterator[bytes]:
    if not err.is_terminal:
        while piece := stream.read(_PIECE_BYTES):
            yield piece
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    words = TextColumn("{task.description}", markup=False)
    with Progress(words, BarColumn(), DownloadColumn(), console=err, transient=True) as bar:
        task = bar.add_task("sending", total=size)
        while piece := stream.read(_PIECE_BYTES):
            yield piece
            bar.advance(task, len(piece))
