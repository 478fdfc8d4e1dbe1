"""Where the command line writes: answers to standard output, everything said along the way to standard error.

What is printed here may come from a job, a tool or a model. It can draw nothing but text: no control characters, no
text direction that hides what follows, no markup and no emoji codes are read in it.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment

from planq.shared.platform.errors import Misconfigured

if TYPE_CHECKING:
    from planq.shared.client.exchanges import Page

_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""With what begins a line or a paragraph (U+2028, U+2029) where no terminal shows one."""

_C1_AND_DELETE = range(0x7F, 0xA0)
_SURROGATES = range(0xD800, 0xE000)

_CONTROLS = {
    code: None for code in (*range(0x20), *_C1_AND_DELETE, *_BIDIRECTIONAL, *_SURROGATES) if chr(code) not in "\n\t"
}
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in (*_C1_AND_DELETE, *_BIDIRECTIONAL, *_SURROGATES)}
"""What JSON would let through as it is; inside its strings the escape means the same."""

_SHOWN_LINES = 12


class PlainConsole(Console):
    """A console that applies `plain` to all text, as the last step before it is written.

    Markdown's entities become characters only while it is rendered.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, without control characters.

        A standard error that cannot be written (a full disk) changes nothing about the command.
        """
        try:
            super().print(*(plain(one) if isinstance(one, str) else one for one in objects), **options)
        except OSError:
            if not self.stderr:
                raise
            self.quiet = True
            discard(2)

    def on_broken_pipe(self) -> None:
        """Go on silently without standard error; without standard output leave the end to `main`."""
        self.quiet = True
        if not self.stderr:
            raise  # rich calls this where it handles the error

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(map(_plain_segment, buffer))


def _plain_segment(segment: Segment) -> Segment:
    if segment.control:
        return segment
    style = segment.style.update_link(None) if segment.style and segment.style.link else segment.style
    return Segment(plain(segment.text), style)


RowText = Callable[[Any], Sequence[str]]
"""Makes the columns of a line for an item."""

out = PlainConsole(markup=False, emoji=False, highlight=False, soft_wrap=True)
err = PlainConsole(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)


def discard(stream: int) -> None:
    """Drop what is written to a standard stream from now on: Python flushes its buffer once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def plain(text: str) -> str:
    """Return text without control characters, so that text of a tool or a model cannot steer the terminal."""
    return text.translate(_CONTROLS)


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def tail_of(text: str) -> Any:
    """Return the last lines of a text, as rich shows them while it grows."""
    from rich.text import Text

    return Text("\n".join(plain(text).splitlines()[-_SHOWN_LINES:]), style="cyan")


def shown_json(value: Any) -> str:
    """Return a value as JSON on one line, with escapes for invisible characters."""
    return json.dumps(value, ensure_ascii=False).translate(_JSON_ESCAPES)


def as_line(text: Any, longest: int = 100) -> str:
    """Return any text as one line of at most `longest` characters and a mark, with `plain` applied."""
    line = " ".join(plain(str(text)).split())
    return line if len(line) <= longest else f"{line[:longest]}…"


def shown_status(job: Mapping[str, Any]) -> str:
    """Return a job's status, and whether it is paused, or answers only in part."""
    outcome = job.get("outcome")
    more = ", paused" if job.get("paused_at") else f", {outcome}" if outcome in ("partial", "incomplete") else ""
    return f"{job['status']}{more}"


def shown_cost(usage: Mapping[str, Any]) -> str:
    """Return what a usage cost: a dash for tokens whose price is not known, no text where nothing was spent."""
    cost = usage.get("cost_usd")
    if cost is None:
        return "– USD" if usage.get("input_tokens") or usage.get("output_tokens") else ""
    return f"{float(cost):.4f} USD" if cost else ""


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns.

    Not a table of rich, which cuts cells: these lines can be copied and piped.
    """
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows with aligned columns; none where there are no rows."""
    for line in columns(rows):
        out.print(line)


def print_result(document: Any, line: str, *, as_json: bool) -> None:
    """Print what a command did: its document for programs, or a line for people."""
    if as_json:
        print_json(document)
    else:
        out.print(line)


def print_page(page: Page) -> None:
    """Print a page as JSON for programs, with the cursor of the next one."""
    print_json({"items": page.items, "next_cursor": page.next_cursor})


def tell_of_more(page: Page) -> None:
    if page.next_cursor:
        err.print("there are more; --limit shows them", style="dim")


def print_items(answer: Mapping[str, Any], row: RowText, nothing: str, *, as_json: bool) -> None:
    """Print the `items` of an answer, a line for each, or say `nothing` where it has none."""
    if not answer["items"] and not as_json:
        err.print(nothing)
    print_rows(answer, [row(one) for one in answer["items"]], as_json=as_json)


def print_rows(document: Any, rows: Sequence[Sequence[str]], *, as_json: bool) -> None:
    """Print a list: its document for programs, or rows with aligned columns for people."""
    if as_json:
        print_json(document)
    else:
        print_columns(rows)


def print_list(page: Page, row: RowText, nothing: str, *, as_json: bool) -> None:
    """Print the items of a page as `print_items` does, and say where there are more."""
    print_items({"items": page.items, "next_cursor": page.next_cursor}, row, nothing, as_json=as_json)
    if not as_json:
        tell_of_more(page)


def print_json_line(value: Any) -> None:
    """Print a value as JSON on one line, for programs that read line by line."""
    out.file.write(f"{shown_json(value)}\n")
    out.file.flush()


def print_json(value: Any) -> None:
    """Print a value as JSON for programs: one document, keys in the order given, no colour."""
    out.file.write(json.dumps(value, ensure_ascii=False, indent=2).translate(_JSON_ESCAPES) + "\n")
    out.file.flush()


def document_yaml(document: dict[str, Any]) -> str:
    """Return a document as YAML, in the order in which it was written."""
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    return text.rstrip("\n")


def preview_of(job: dict[str, Any]) -> str:
    """Return the preview of a job's large output, after a line that says what it is and how to get the whole."""
    steps = job.get("steps")
    step = steps[-1]["index"] if steps else "STEP"
    return f"preview of a large output; `planq output {job['id']} {step}` prints the whole:\n{job['preview']}"


def write_pieces(pieces: Iterable[bytes], to: Path | None) -> None:
    """Write JSON of any size that comes in pieces to a file, or to standard output.

    A terminal gets no control characters. Raises `Misconfigured` for a file that cannot be written; an earlier file
    stays until the new one is complete.
    """
    if to is not None:
        _write_file(to, pieces)
    elif sys.stdout.isatty():
        text = codecs.getincrementaldecoder("utf-8")("replace")
        for piece in pieces:
            sys.stdout.write(plain(text.decode(piece)))
        sys.stdout.write("\n")
    else:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def _write_file(target: Path, pieces: Iterable[bytes]) -> None:
    written = 0
    try:
        with NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            try:
                for piece in pieces:
                    written += file.write(piece)
                os.replace(file.name, target)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise Misconfigured(f"--to: {target} cannot be written ({error.strerror})") from error
    err.print(f"{written} bytes written to {target}", style="dim")
