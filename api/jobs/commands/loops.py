"""`planq loops`: loop blocks in files, checked, and imported from workflow documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planq.api.cli.connection import AsJson
from planq.api.cli.console import err, out, plain, print_json
from planq.api.cli.outcome import reported

_File = Annotated[str, typer.Argument(metavar="FILE|-", help="YAML or JSON; - reads standard input.")]


def check_loop(file: _File, as_json: AsJson = False) -> None:
    """Check a loop block: every defect with its line."""
    from planq.api.jobs.commands.loop_files import read_loop_file

    with reported(as_json=as_json):
        block = read_loop_file(file)
    print_json(block) if as_json else err.print("the loop block is valid", style="dim")


def import_loop(
    file: _File,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the block here; else it is printed.")
    ] = None,
    var: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE|NAME=@FILE", help="A variable that the workflow's caller sets; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import a workflow document of Agently as a loop block.

    What cannot be said as one is named with its line, and nothing is written.
    """
    from planq.api.cli.console import document_yaml
    from planq.api.jobs.commands.loop_files import imported, write_file

    with reported(as_json=as_json):
        block = imported(file, var or [])
        if output is not None:
            write_file(output, document_yaml(block) + "\n")
            err.print(f"{output} written; `planq submit --strategy loop --loop {output} …` uses it", style="dim")
    if as_json:
        print_json(block)
    elif output is None:
        out.print(plain(document_yaml(block)))
