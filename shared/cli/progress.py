"""Telling how a job goes, line by line: its plan, its steps as they run, its answer.

Each change is one line with the time since the beginning, so that the same output serves a terminal and a log.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from time import monotonic, sleep
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.panel import Panel

from shared.cli.client import Client, Json
from shared.cli.console import plain
from shared.domain.states import JobStatus

POLL_SECONDS = 0.15
LONGEST_VALUE = 100
STEP_STYLES = {"succeeded": "green", "failed": "red", "skipped": "dim", "cancelled": "dim", "running": "cyan"}


def follow(
    client: Client,
    job_id: str,
    console: Console,
    *,
    timeout: float | None = None,
    clock: Callable[[], float] = monotonic,
    pause: Callable[[float], None] = sleep,
) -> Json:
    """Print a job's progress until it has ended and return the job as it is then.

    After `timeout` seconds the job is returned as it stands, unfinished. Raises as `Client.job` does.
    """
    story = Story(console, begun=clock(), clock=clock)
    while True:
        job = client.job(job_id)
        story.tell(job)
        if JobStatus(job["status"]).is_terminal or (timeout is not None and clock() - story.begun >= timeout):
            return job
        pause(POLL_SECONDS)


class Story:
    """What has been told of a job already; `tell` prints only what is new."""

    def __init__(self, console: Console, *, begun: float, clock: Callable[[], float]) -> None:
        self.begun = begun
        self._console = console
        self._clock = clock
        self._status: str | None = None
        self._plan_told = False
        self._steps: dict[int, tuple[str, int]] = {}

    def tell(self, job: Json) -> None:
        """Print what changed since the last call."""
        if job.get("plan") and not self._plan_told:
            self._plan_told = True
            self._tell_plan(job)
        for step in job.get("steps") or []:
            self._tell_step(step)
        if job["status"] != self._status:
            self._status = job["status"]
            self._line(f"job {self._status}", style="bold")

    def _tell_plan(self, job: Json) -> None:
        self._console.print("plan", style="bold")
        for step in job.get("steps") or []:
            after = ", ".join(f"${index}" for index in step.get("depends_on") or [])
            arguments = ", ".join(f"{name}={_short(value)}" for name, value in (step.get("arguments") or {}).items())
            waits = f"  (after {after})" if after else ""
            self._console.print(f"  ${step['index']} {step['tool_name']}({arguments}){waits}")

    def _tell_step(self, step: Json) -> None:
        state = (step["status"], step.get("attempt") or 0)
        if self._steps.get(step["index"]) == state:
            return
        self._steps[step["index"]] = state
        status, attempt = state
        if status in ("pending", "ready"):
            return
        again = f" (attempt {attempt})" if attempt > 1 else ""
        error = f": {_short(step['error'].get('message'))}" if step.get("error") else _took(step)
        self._line(f"step ${step['index']} {step['tool_name']} {status}{again}{error}", style=STEP_STYLES.get(status))

    def _line(self, text: str, *, style: str | None = None) -> None:
        self._console.print(f"{self._clock() - self.begun:6.2f} s  {text}", style=style)


def print_outcome(job: Json, console: Console) -> None:
    """Print a finished job's answer, or why there is none, and what it cost."""
    if job.get("answer"):
        # The answer is a model's or a tool's text: rendered as Markdown, it can draw but not act.
        console.print(
            Panel(Markdown(plain(str(job["answer"])), hyperlinks=False), title="answer", title_align="left")
        )
    if job.get("error"):
        error = job["error"]
        console.print(plain(f"{error.get('code')}: {error.get('message')}"), style="red")
    usage = job.get("usage") or {}
    tokens = f"{usage.get('input_tokens', 0)} + {usage.get('output_tokens', 0)} tokens"
    cost = usage.get("cost_usd")
    price = f", {float(cost):.4f} USD" if cost else ""
    console.print(f"{job.get('model_calls', 0)} model calls, {tokens}{price}", style="dim")


def _took(step: Json) -> str:
    started, finished = step.get("started_at"), step.get("finished_at")
    if not started or not finished:
        return ""
    seconds = (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds()
    return f" in {seconds * 1000:.0f} ms"


def _short(value: Any) -> str:
    text = plain(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
