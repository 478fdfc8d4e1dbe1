"""`planq validate`: everything that is wrong with a plan, without running it."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.connection import ApiKey, AsJson, Url, connect
from api.cli.console import out, print_json
from api.cli.outcome import NOT_OK, OK, describe, end, reported


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(validate)


def validate(
    plan: Annotated[str, typer.Argument(metavar="FILE|-", help="The plan (JSON); - reads standard input.")],
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Check a plan against the published tools.

    Prints every defect with its place; exit code 1 when there is one.
    """
    from api.cli.inputs import read_json

    with reported(as_json=as_json):
        document = read_json(plan, "the plan")
        with connect(url, api_key) as client:
            result = client.validate(document)
    errors = result["errors"]
    if as_json:
        print_json(result)
    elif result["valid"]:
        out.print("the plan is valid", style="green")
    else:
        out.print(f"the plan has {len(errors)} {'error' if len(errors) == 1 else 'errors'}", style="red")
        for error in errors:
            out.print(f"- {describe(error)}")
    end(OK if result["valid"] else NOT_OK)
