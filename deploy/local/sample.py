"""`planq sample`: loads a small handbook, stores the sample agents, and runs one job, to show what planq does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import typer

from planq.api.cli.connection import Url, connect
from planq.api.cli.console import err, out
from planq.api.jobs.sample import SAMPLE_INPUT

_PATIENCE_SECONDS = 120.0


def sample(url: Url = None) -> None:
    """Load a small handbook, store the sample agents, and run the sample job on the handbook."""
    key = os.environ.get("PLANQ_API_KEY") or _first_key()
    _run(["knowledge", "load", str(HANDBOOK), "--prefix", "handbook/"], "the handbook could not be loaded")
    _store_agents(url, key)
    succeeded = run_sample(url, key)
    raise typer.Exit(0 if succeeded else 1)


def run_sample(url: str | None, api_key: str | None) -> bool:
    """Submit the sample job, print its plan, steps and answer, and say whether it succeeded."""
    from planq.api.jobs.commands.progress import follow_job, print_outcome

    with connect(url, api_key) as client:
        out.print(f"sample job: {SAMPLE_INPUT}")
        job = client.submit({"input": SAMPLE_INPUT, "metadata": {"sample": True}})
        out.print(f"job {job['id']}")
        job = follow_job(client, job["id"], out, timeout=_PATIENCE_SECONDS)
        print_outcome(job, out)
    return bool(job["outcome"] == "succeeded")


HANDBOOK = Path(__file__).resolve().parents[1] / "samples" / "handbook"
"""A few short texts that the sample job searches."""


AGENTS = HANDBOOK.parent / "agents"
"""A small team, an agent that dreams, and one for everything else, with the skill that they list."""


def _store_agents(url: str | None, api_key: str | None) -> None:
    named = [] if url is None else ["--url", url]
    output = _run(["agents", "apply", str(AGENTS), *named], "the sample agents could not be stored", api_key)
    names = [line.split()[1] for line in output.splitlines() if line.startswith("agent ")]
    if names:
        out.print(f"sample agents: {', '.join(names)}")


def _run(arguments: Sequence[str], failed: str, api_key: str | None = None) -> str:
    from planq.deploy.local.parts import PLANQ

    environment = dict(os.environ) if api_key is None else {**os.environ, "PLANQ_API_KEY": api_key}
    done = subprocess.run(  # noqa: S603 - our own command
        [*PLANQ, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode == 0:
        return done.stdout
    err.print(f"{failed}: {done.stderr.strip() or done.stdout.strip()}", style="red")
    return ""


def _first_key() -> str | None:
    return next((key.strip() for key in os.environ.get("PLANQ_API_KEYS", "").split(",") if key.strip()), None)
