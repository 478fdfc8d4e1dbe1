"""`planq doctor`: is everything there that planq needs? Each line says ok, or what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.connection import ApiKey, AsJson, Url
from api.cli.console import one_line, out, print_json
from api.cli.outcome import NOT_OK, OK, end, reported

if TYPE_CHECKING:
    from deploy.cli.checks import Finding


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(doctor)


def doctor(
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
    invariants: Annotated[
        bool, typer.Option("--invariants", help="Also check the stored history; reads all of it.")
    ] = False,
) -> None:
    """Check that planq has all it needs.

    Environment, settings, servers, schema, queues, workers and API; exit code 1 unless all are ok.
    """
    from deploy.cli.checks import examine

    findings: list[Finding] = []
    with reported(as_json=as_json):
        for finding in examine(url, api_key, invariants=invariants):
            findings.append(finding)
            if not as_json:
                _tell(finding)
    is_well = all(finding.ok for finding in findings)
    if as_json:
        print_json({"ok": is_well, "checks": [asdict(finding) for finding in findings]})
    end(OK if is_well else NOT_OK)


def _tell(finding: Finding) -> None:
    mark, style = {True: ("ok", "green"), False: ("not ok", "red"), None: ("-", "dim")}[finding.ok]
    if finding.ok and finding.advice:
        mark, style = "warning", "yellow"
    out.print(f"{mark:<7} {one_line(finding.name, 60):<20} {one_line(finding.found, 400)}", style=style)
    if finding.advice:
        out.print(f"{'':<7} {'':<20} → {one_line(finding.advice, 400)}")
