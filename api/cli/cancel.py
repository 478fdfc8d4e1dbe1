"""`planq cancel`: asks for a job's end."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from api.cli.connection import ApiKey, AsJson, Url, connect
from api.cli.console import out, print_json
from api.cli.outcome import reported


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(cancel)


def cancel(
    job_id: Annotated[UUID, typer.Argument(metavar="ID", help="The job's id.")],
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a job: no new step starts.

    Exit code 1 when the job has completed or failed already.
    """
    with reported(as_json=as_json), connect(url, api_key) as client:
        job = client.cancel(str(job_id))
    if as_json:
        print_json(job)
    else:
        out.print(f"job {job['id']} {job['status']}")
