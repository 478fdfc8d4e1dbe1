"""`planq sample`: loads a small handbook and runs one job over them, to show what planq does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import typer

from planq.api.cli.connection import Url, connect
from planq.api.cli.console import err, out
from planq.api.sample import SAMPLE_INPUT

_PATIENCE_SECONDS = 120.0


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(sample)


def sample(url: Url = None) -> None:
    """Load a small handbook and run the sample job on it."""
    _load_handbook()
    succeeded = run_sample(url, os.environ.get("PLANQ_API_KEY") or _first_key())
    raise typer.Exit(0 if succeeded else 1)


def run_sample(url: str | None, api_key: str | None) -> bool:
    """Submit the sample job, print its plan, steps and answer, and say whether it succeeded."""
    from planq.api.cli.progress import follow_job, print_outcome

    with connect(url, api_key) as client:
        out.print(f"sample job: {SAMPLE_INPUT}")
        job = client.submit({"input": SAMPLE_INPUT, "metadata": {"sample": True}})
        out.print(f"job {job['id']}")
        job = follow_job(client, job["id"], out, timeout=_PATIENCE_SECONDS)
        print_outcome(job, out)
    return bool(job["outcome"] == "succeeded")


HANDBOOK = Path(__file__).resolve().parents[1] / "samples" / "handbook"
"""What the sample job searches: a few short texts of its own, in a clone and in a wheel alike."""


def _load_handbook() -> None:
    from planq.deploy.local.parts import PLANQ

    command = [*PLANQ, "knowledge", "load", str(HANDBOOK), "--prefix", "handbook/"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if done.returncode != 0:
        err.print(f"the handbook could not be loaded: {done.stderr.strip() or done.stdout.strip()}", style="red")


def _first_key() -> str | None:
    return next((key.strip() for key in os.environ.get("PLANQ_API_KEYS", "").split(",") if key.strip()), None)
