"""The progress of a job, line by line, its outcome, and the tree of a job with its child jobs.

Each change of a step is one line with the time since the job was created, so the same output serves a terminal and a
log, and shows which steps ran in parallel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from time import monotonic, sleep
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree

from planq.api.cli.client import CommandClient
from planq.api.cli.console import PlainConsole, as_line, counted, plain, preview_of, shown_cost, shown_status
from planq.shared.client.wire import Json
from planq.shared.kernel.states import JobStatus, StepStatus, StopReason

POLL_SECONDS = 0.15
LONGEST_VALUE = 100
STYLES = {"completed": "green", "succeeded": "green", "failed": "red", "skipped": "dim", "cancelled": "dim"}
_ANSWERED = (StopReason.ANSWERED, StopReason.NO_STEPS, StopReason.UNTIL)


def follow_job(
    client: CommandClient,
    job_id: str,
    console: Console,
    *,
    timeout: float | None = None,
    clock: Callable[[], float] = monotonic,
    pause: Callable[[float], None] = sleep,
) -> Json:
    """Print a job's progress until it has ended and return the job as it is then.

    After `timeout` seconds the job is returned as it stands, unfinished. Raises as `CommandClient.job` does.
    """
    printer = ProgressPrinter(console)
    begun = clock()
    while True:
        job = client.job(job_id)
        printer.update(job)
        if JobStatus(job["status"]).is_terminal or (timeout is not None and clock() - begun >= timeout):
            return job
        pause(POLL_SECONDS)


class ProgressPrinter:
    """What has been printed of a job; `update` prints only what is new, in the order in which it happened."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: str | None = None
        self._rounds: set[int] = set()
        self._begun: dict[tuple[int, int], datetime] = {}
        self._ended: set[int] = set()
        self._asked: list[str] = []

    def update(self, job: Json) -> None:
        """Print what changed since the last call. Times count from the job's creation, by the database's clock."""
        zero = datetime.fromisoformat(job["created_at"])
        for one in job.get("rounds") or []:
            if (one["steps"] or one["source"] == "guide") and one["round"] not in self._rounds:
                self._rounds.add(one["round"])
                self._print_plan(job, one)
        news = [event for step in job.get("steps") or [] for event in self._news(step)]
        # Steps that ran side by side between two looks are printed as they ran, not in the order of the plan.
        for at, text, style in sorted(news, key=lambda event: event[0]):
            self._console.print(f"{(at - zero).total_seconds():6.2f} s  {text}", style=style)
        status = shown_status(job)
        if status != self._status:
            self._status = status
            self._console.print(f"          job {status}", style="bold")
        asked = list(questions(job))
        for question in asked:
            if question not in self._asked:
                self._console.print(question, style="yellow")
        self._asked = asked

    def _print_plan(self, job: Json, round_: Json) -> None:
        self._console.print(round_heading(round_), style="bold")
        plan = round_.get("plan") or {}
        for advised in plan.get("steps") or []:
            self._console.print(f"  {advised['step_number']}. {as_line(advised['description'], 200)}")
        calls = plan.get("calls") or []
        steps = [step for step in job["steps"] if step.get("round") == round_["round"]]
        for place, step in enumerate(steps):
            # As planned, with its references: the step's own arguments may be resolved already.
            planned = calls[place] if place < len(calls) else step
            after = ", ".join(f"${index}" for index in step.get("depends_on") or [])
            given = planned.get("arguments") or {}
            arguments = ", ".join(f"{plain(name)}={_short(value)}" for name, value in given.items())
            waits = f"  (after {after})" if after else ""
            self._console.print(f"  {_name(step)}({arguments}){waits}")

    def _news(self, step: Json) -> Iterator[tuple[datetime, str, str | None]]:
        """Yield what is new about a step: when it happened, what to print, and how."""
        attempt, status = step.get("attempt") or 0, step["status"]
        started, finished = _time(step.get("started_at")), _time(step.get("finished_at"))
        name, index = _name(step), step["index"]
        if started and attempt and (index, attempt) not in self._begun:
            yield started, f"step {name} {self._begins(step, attempt, started)}", "cyan"
            self._begun[(index, attempt)] = started
        if finished and index not in self._ended and StepStatus(status).is_terminal:
            self._ended.add(index)
            took = f" after {(finished - started).total_seconds() * 1000:.0f} ms" if started else ""
            if origin := step.get("reused_from"):
                took = f", as in {origin['job_id']} ${origin['index']}"
            took += f", {step['cost_usd']:.4f} USD" if step.get("cost_usd") else ""
            error = f": {_short(step['error'].get('message'))}" if step.get("error") else ""
            yield finished, f"step {name} {status}{took}{error}", STYLES.get(status)

    def _begins(self, step: Json, attempt: int, started: datetime) -> str:
        if step.get("kind", "tool") == "tool":
            if attempt == 1:
                return "started"
            # A retry keeps the time of the first start: when it began itself is not known here.
            known = [at for (index, _), at in self._begun.items() if index == step["index"]]
            is_anew = known and started not in known
            return f"started again (attempt {attempt})" if is_anew else f"started, and is in attempt {attempt}"
        # It hands over, and goes on in another attempt once those have ended.
        return "goes on" if (step["index"], attempt - 1) in self._begun else "started"


def round_heading(round_: Json) -> str:
    """Return what stands above the steps of a round."""
    if round_["source"] == "chained":
        return f"round {round_['round']}: the chained tool"
    if round_["source"] == "guide":
        return "guide" if round_["plan"] else "no guide: its planning call failed, and the turns go on without"
    return f"round {round_['round']}: plan" if round_["round"] else "plan"


def questions(job: Json) -> Iterator[str]:
    """Yield what a job waits for: its model, and what its steps ask, each with the command that answers it."""
    if retry := job.get("retry"):
        at = retry.get("next_attempt_at")
        then = "it is asked again now" if at is None else f"it is asked again at {at}"
        yield (
            f"{retry['stage']} waits for its model, which failed in attempt {retry['attempts']}: "
            f"{as_line(retry['error']['message'], 300)}; {then}"
        )
    for step in job.get("steps") or []:
        if question := step.get("question"):
            yield _question(f"${step['index']}", {**question, "job_id": job["id"], "step_index": step["index"]})
        if since := step.get("tool_away_since"):
            tool = as_line(step["tool_name"])
            yield f"${step['index']} waits for a worker that has the tool {tool}: none has lived since {since}"
    for question in job.get("open_questions") or []:
        if question["job_id"] != job["id"]:
            yield _question(f"{question['job_id']} ${question['step_index']}", question)


def _question(place: str, question: Json) -> str:
    asks = f"{place} asks: {as_line(question.get('message') or question, 500)}"
    if question.get("kind") == "outcome":
        settle = f"  planq settle {question['job_id']} {question['step_index']}"
        return f"{asks}\n{settle} happened --output JSON\n{settle} did-not-happen\n{settle} unknown"
    command = f"  planq answer {question.get('id')}"
    return f"{asks}\n{command}\n{command} --decline"


def print_outcome(job: Json, console: Console) -> None:
    """Print a finished job's answer, or why there is none, and what it cost."""
    if job.get("answer"):
        _print_answer(plain(str(job["answer"])), console)
    elif job.get("preview"):
        console.print(plain(preview_of(job)))
    if job.get("error"):
        error = job["error"]
        place = "" if error.get("step") is None else f"${error['step']} {error.get('tool_name')}: "
        console.print(plain(f"{place}{error.get('code')}: {error.get('message')}"), style="red")
    if (stopped := job.get("stop_reason")) and stopped not in _ANSWERED:
        console.print(plain(f"stopped before the planner had finished: {stopped}"), style="yellow")
    for warning in job.get("warnings") or []:
        console.print(plain(f"warning: {warning.get('message')}"), style="yellow")
    console.print(_used(job.get("model_calls", 0), job.get("usage") or {}), style="dim")
    tree = job.get("tree_usage") or {}
    if below := tree.get("jobs", 1) - 1:
        children = f"{below} child job{'' if below == 1 else 's'}"
        console.print(f"with {children}: {_used(tree['model_calls'], tree)}", style="dim")


def _used(calls: int, usage: Json) -> str:
    tokens = f"{usage.get('input_tokens', 0)} + {usage.get('output_tokens', 0)} tokens"
    if cached := usage.get("cache_read_tokens"):
        tokens += f" ({cached} from the prompt cache)"
    price = f", {cost}" if (cost := shown_cost(usage)) else ""
    return f"{calls} model call{'' if calls == 1 else 's'}, {tokens}{price}"


def _name(step: Json) -> str:
    return f"${step['index']} {plain(str(step['tool_name']))}"


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _short(value: Any) -> str:
    text = plain(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _print_answer(answer: str, console: Console) -> None:
    """Print a model's or a tool's text: as it is for programs, rendered as Markdown for people (it cannot act)."""
    if not console.is_terminal:
        console.print(answer)
        return
    panel = Panel(Markdown(answer, hyperlinks=False), title="answer", title_align="left")
    console.print(panel, soft_wrap=False)  # wrapped inside its frame, not cut off at it


MAX_JOBS = 1_000
"""Further ones are only named: nobody reads a larger tree."""

_WIDE = 10_000
"""No label is as long; rich cuts what is longer than its console is wide."""


def with_children(client: CommandClient, job: Json) -> Json:
    """Return a job in which each of `children` has its whole document as `job`, down to the leaves.

    Children beyond `MAX_JOBS` have none. Raises as `CommandClient.job` does.
    """
    left = [MAX_JOBS]
    return _filled(client, job, left)


def _filled(client: CommandClient, job: Json, left: list[int]) -> Json:
    children = []
    for child in job.get("children") or []:
        left[0] -= 1
        found = _filled(client, client.job(child["id"]), left) if left[0] >= 0 else None
        children.append({**child, "job": found})
    return {**job, "children": children}


def draw(job: Json, now: datetime | None = None) -> Tree:
    """Return the tree of what `with_children` returned; unfinished jobs show the time that they have taken."""
    at = now or datetime.now(UTC)
    tree = Tree(_job_label(job, at))
    _grow(tree, job, at)
    return tree


def print_tree(job: Json, console: Console) -> None:
    """Print the tree: folded at the edge of a terminal, in whole lines for programs."""
    tree = draw(job)
    if console.is_terminal:
        console.print(tree, soft_wrap=False)
    else:
        PlainConsole(file=console.file, width=_WIDE, color_system=None).print(tree)


def tree_totals(job: Json) -> str:
    """Return what the jobs of a tree have used together."""
    jobs = list(_all(job))
    calls = sum(one.get("model_calls") or 0 for one in jobs)
    usage = [one.get("usage") or {} for one in jobs]
    totals = {kind: sum(one.get(kind) or 0 for one in usage) for kind in ("input_tokens", "output_tokens")}
    costs = [one["cost_usd"] for one in usage if one.get("cost_usd") is not None]
    tokens = " + ".join(map(str, totals.values()))
    price = f", {cost}" if (cost := shown_cost({**totals, "cost_usd": sum(costs) if costs else None})) else ""
    return f"{counted(len(jobs), 'job')}, {counted(calls, 'model call')}, {tokens} tokens{price}"


def _all(job: Json) -> Iterator[Json]:
    yield job
    for child in job.get("children") or []:
        if child.get("job"):
            yield from _all(child["job"])


def _grow(tree: Tree, job: Json, now: datetime) -> None:
    branches: dict[int, Tree] = {}
    rounds = job.get("rounds") or []
    trunks = {one["round"]: tree.add(round_heading(one)) for one in rounds} if len(rounds) > 1 else {}
    for step in job.get("steps") or []:
        branches[step["index"]] = trunks.get(step.get("round"), tree).add(_step_label(step, now))
    for child in job.get("children") or []:
        branch = branches.get(child["step_index"], tree)
        found = child.get("job")
        key = f"{plain(child['key'])}: " if child.get("key") else ""
        if found is None:
            branch.add(Text(f"{key}{child['id']} {child['status']}"))
        else:
            _grow(branch.add(_job_label(found, now, key)), found, now)


def _job_label(job: Json, now: datetime, key: str = "") -> Text:
    label = Text(key)
    label.append(_doer(job), style="bold")
    label.append(f" {job['status']}", style=STYLES.get(job["status"], "yellow"))
    calls = job.get("model_calls") or 0
    facts = [
        _elapsed(job["created_at"], job.get("finished_at"), now),
        counted(calls, "model call") if calls else "",
        shown_cost(job.get("usage") or {}),
    ]
    label.append("".join(f", {fact}" for fact in facts if fact))
    label.append(f"  {job['id']}", style="dim")
    if job.get("error"):
        label.append(f"  {_error(job['error'])}", style="red")
    if job.get("chained"):
        label.append(f"  then {_chained(job['chained'])}")
    return label


def _doer(job: Json) -> str:
    agent = job.get("agent")
    if agent:
        return plain(f"{agent['name']} v{agent['version']}")
    return "agents" if job.get("parent") else "job"


def _step_label(step: Json, now: datetime) -> Text:
    label = Text(f"${step['index']} {as_line(step['tool_name'])}")
    label.append(f" {step['status']}", style=STYLES.get(step["status"], "yellow"))
    if step.get("started_at"):
        label.append(f", {_elapsed(step['started_at'], step.get('finished_at'), now)}")
    if step.get("cost_usd"):
        label.append(f", {step['cost_usd']:.4f} USD")
    if step.get("error"):
        label.append(f"  {_error(step['error'])}", style="red")
    return label


def _error(error: Any) -> str:
    return as_line(f"{error.get('code')}: {error.get('message')}", 120)


def _chained(chained: Json) -> str:
    failed = chained.get("error")
    if not failed:
        return as_line(f"{chained.get('tool_name')} succeeded", 120)
    message = _error(failed) if isinstance(failed, dict) else str(failed)
    return as_line(f"{chained.get('tool_name')} failed: {message}", 120)


def _elapsed(begun: str, finished: str | None, now: datetime) -> str:
    end = datetime.fromisoformat(finished) if finished else now
    seconds = max(0.0, (end - datetime.fromisoformat(begun)).total_seconds())
    return f"{seconds:.2f} s" if finished else f"{seconds:.0f} s so far"
