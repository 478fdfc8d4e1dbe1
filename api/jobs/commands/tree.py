"""A job with the jobs that its steps have handed over to, as a tree: who does what, for how long, at what cost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from planq.api.cli.client import CommandClient
from planq.api.cli.console import PlainConsole, as_line, counted, plain, shown_cost
from planq.api.jobs.commands.progress import round_heading
from planq.shared.client.wire import Json

STYLES = {"completed": "green", "succeeded": "green", "failed": "red", "skipped": "dim", "cancelled": "dim"}
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
