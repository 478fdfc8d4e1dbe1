"""How values look on a page: states, times, amounts, JSON, and texts that others wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from planq.shared.kernel.states import RUNNING_STEP, WAITING_STEP, JobStatus, Outcome, StepStatus
from planq.shared.subjects.batches.rules import BatchStatus
from planq.shared.subjects.jobs.waiting import shown_seconds

SHOWN_CHARS = 20_000
"""Of a longer text a page shows the beginning, and says how much is left out."""

_KIB = 1024

_STEERING = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""What would move, hide or turn round the text beside it."""

_KINDS = {
    JobStatus.QUEUED: ("idle", "Queued"),
    JobStatus.PLANNING: ("run", "Planning"),
    JobStatus.EXECUTING: ("run", "Running"),
    JobStatus.INPUT_REQUIRED: ("ask", "Needs a person"),
    JobStatus.RESPONDING: ("run", "Answering"),
    JobStatus.COMPLETED: ("ok", "Completed"),
    JobStatus.FAILED: ("bad", "Failed"),
    JobStatus.CANCELLED: ("idle", "Cancelled"),
}
_STEP_KINDS = {StepStatus.SUCCEEDED: "ok", StepStatus.FAILED: "bad", **dict.fromkeys(RUNNING_STEP, "run")}
"""The kinds of those states that are not `idle`."""

_BATCH_KINDS = {
    BatchStatus.UPLOADING: ("run", "Comes in"),
    BatchStatus.VALIDATING: ("run", "Is checked"),
    BatchStatus.IN_PROGRESS: ("run", "Running"),
    BatchStatus.CANCELLING: ("run", "Being cancelled"),
    BatchStatus.COMPLETED: ("ok", "Completed"),
    BatchStatus.FAILED: ("bad", "Failed"),
    BatchStatus.CANCELLED: ("idle", "Cancelled"),
}


def job_state(job: dict[str, Any]) -> tuple[str, str]:
    """Return the kind of state that a job is in, which is its colour and glyph, and its word."""
    status = JobStatus(job["status"])
    if job.get("paused_at") and not status.is_terminal:
        return "idle", "Paused"
    if status is JobStatus.COMPLETED and job.get("outcome") == Outcome.PARTIAL:
        return "bad", "Partial"
    if status is JobStatus.COMPLETED and job.get("outcome") == Outcome.INCOMPLETE:
        return "bad", "Incomplete"
    return _KINDS[status]


def status_state(status: str) -> tuple[str, str]:
    return _KINDS[JobStatus(status)]


def batch_state(batch: dict[str, Any]) -> tuple[str, str]:
    """Return the kind and the word of a batch's state; `bad` is also one of which lines have failed."""
    status = BatchStatus(batch["status"])
    if batch["paused_at"] and not status.is_terminal:
        return "idle", "Paused"
    if status is BatchStatus.COMPLETED and any(
        batch["counts"][name] for name in ("failed", "partial", "incomplete", "invalid")
    ):
        return "bad", "Completed in part"
    return _BATCH_KINDS[status]


def step_state(step: dict[str, Any]) -> tuple[str, str]:
    status = StepStatus(step["status"])
    if status in WAITING_STEP and step.get("question"):
        return "ask", "Asks"
    return _STEP_KINDS.get(status, "idle"), status.capitalize().replace("_", " ")


def bars_of(amounts: Iterable[tuple[str, float]], whole: float) -> list[dict[str, Any]]:
    """Return the parts of a progress bar, each of a kind of state, in thousandths of the whole."""
    at, bars = 0.0, []
    for kind, amount in amounts:
        width = 1_000 * amount / (whole or 1)
        bars.append({"kind": kind, "x": round(at, 1), "width": round(width, 1)})
        at += width
    return [bar for bar in bars if bar["width"]]


def inert(text: Any, most: int = SHOWN_CHARS) -> str:
    """Return a text of somebody else's for a page: what would steer the text around it is named, not done."""
    whole = str(text)
    shown = _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", whole[:most])
    return shown if len(whole) <= most else f"{shown}… [{len(whole) - most} more characters]"


def line(text: Any, most: int = 160) -> str:
    whole = " ".join(str(text)[: 4 * most].split())
    return inert(whole) if len(whole) <= most else f"{inert(whole[: most - 1])}…"


def pretty(value: Any) -> str:
    """Return a value as JSON to be read; what is nested too deeply to be laid out stands in one line."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        return "[nested too deeply to be shown; its address has it whole]"
    return inert(text)


def when(text: str | None) -> Markup:
    """Return a time as a page shows it: how long ago, and the moment for who asks."""
    if text is None:
        return Markup("–")
    return _time(text, "{} ago")


def age(text: str) -> Markup:
    return _time(text, "{}")


def _time(text: str, past: str) -> Markup:
    moment = datetime.fromisoformat(text)
    seconds = (datetime.now(UTC) - moment).total_seconds()
    phrase = past.format(shown_seconds(seconds)) if seconds >= 0 else f"in {shown_seconds(-seconds)}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(text, f"{moment:%Y-%m-%d %H:%M:%S} UTC", phrase)


def took(begun: str | None, ended: str | None) -> str:
    """Return how long something took, or has taken up to now."""
    if begun is None:
        return "–"
    until = datetime.now(UTC) if ended is None else datetime.fromisoformat(ended)
    seconds = (until - datetime.fromisoformat(begun)).total_seconds()
    return f"{seconds:.1f} s" if 0 <= seconds < 60 else shown_seconds(seconds)


def cost(amount: float | None) -> str:
    if amount is None:
        return "–"
    return f"${amount:.2f}" if amount >= 1 or amount == 0 else f"${amount:.4f}"


def size(number: int) -> str:
    """Return how many bytes something has, in the unit in which that is read at a glance."""
    if number < _KIB:
        return f"{number} bytes"
    units = ("KiB", "MiB", "GiB", "TiB")
    power = next((n for n in range(1, len(units)) if number < _KIB ** (n + 1)), len(units))
    return f"{number / _KIB**power:.1f} {units[power - 1]}"


def dollars(amount: float | None) -> Markup:
    """Return an amount of money in cents, less than one to the millionth; the whole of it for who asks."""
    if amount is None:
        return Markup("–")
    exact = f"{amount:.9f}".rstrip("0").ljust(4, "0")
    shown = f"{amount:,.2f}" if amount >= 0.01 or amount == 0 else f"{amount:.6f}"
    return Markup('<data value="{}" title="${}">${}</data>').format(exact, exact, shown)


def _markdown() -> MarkdownIt:
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")

    def link_open(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        tokens[index].attrSet("rel", "noopener noreferrer nofollow")
        return str(self.renderToken(tokens, index, options, env))

    reader.add_render_rule("link_open", link_open)
    return reader


_READER = _markdown()


def markdown(text: Any) -> Markup:
    """Return a model's text as HTML: its own tags are text, it loads nothing, and no link runs a script."""
    return Markup(_READER.render(inert(text)))  # noqa: S704 - `html` is off, and links are checked by the library
