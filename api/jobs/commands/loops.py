"""`planq loops`: loop blocks and prompts in files, checked, and imported from workflow documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from planq.api.cli.connection import AsJson
from planq.api.cli.console import document_yaml, err, out, plain, print_json
from planq.api.cli.outcome import reported
from planq.shared.platform.errors import InvalidRequest, Misconfigured
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.describe import excerpt

_File = Annotated[str, typer.Argument(metavar="FILE|-", help="YAML or JSON; - reads standard input.")]


def check_loop(file: _File, as_json: AsJson = False) -> None:
    """Check a loop block: every defect with its line."""
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
    with reported(as_json=as_json):
        block = imported(file, var or [])
        if output is not None:
            try:
                output.write_text(document_yaml(block) + "\n", encoding="utf-8")
            except OSError as error:
                raise Misconfigured(f"cannot write {str(output)!r} ({error.strerror})") from error
            err.print(f"{output} written; `planq submit --strategy loop --loop {output} …` uses it", style="dim")
    if as_json:
        print_json(block)
    elif output is None:
        out.print(plain(document_yaml(block)))


def read_loop_file(name: str) -> dict[str, Any]:
    """Return the loop block in a YAML or JSON file, `-` for standard input, as it is written there.

    Raises `InvalidRequest` with each defect as `{file, line, path, message}`, or `Misconfigured` without a file.
    """
    from planq.api.cli.inputs import files_refused, read_text
    from planq.shared.agentic.rounds.block import read_block
    from planq.shared.agentic.source import read_source

    marked = read_source(read_text(name, "--loop"))
    found = [] if marked.defects else [marked.defect(path, message) for path, message in read_block(marked.value)[1]]
    defects = [*marked.defects, *found]
    if defects:
        raise files_refused([replace(one, file=name) for one in defects])
    block: dict[str, Any] = marked.value
    return block


def read_prompt_file(name: str) -> dict[str, Any]:
    """Return the prompt of a loop block that the template in a file is; raises as `read_loop_file`."""
    from planq.api.cli.inputs import files_refused, read_text
    from planq.shared.agentic.rounds.block import prompt_defects

    text = read_text(name, "--prompt-template")
    defects = [Defect("", "", message, file=name) for message in prompt_defects(text)]
    if not text.strip():
        defects.append(Defect("", "", f"expected a prompt template, found {excerpt(text)}", file=name))
    if defects:
        raise files_refused(defects)
    return {"text": text}


def imported(name: str, given: Sequence[str]) -> dict[str, Any]:
    """Return the loop block that a workflow is; `given` are its caller's variables, NAME=VALUE or NAME=@FILE.

    Raises as `read_loop_file`, for each thing that cannot be said as a loop block.
    """
    from planq.api.cli.inputs import files_refused, pairs_of, read_text
    from planq.shared.agentic.rounds.workflow import import_workflow

    variables = {
        key: read_text(value[1:], f"--var {key}") if value.startswith("@") else value
        for key, value in pairs_of(given, "--var")
    }
    try:
        block = import_workflow(read_text(name, "the workflow"), variables).to_json()
    except InvalidRequest as error:
        found = [
            Defect(one.get("path") or "", "", one["message"], one.get("line"), name)
            for one in error.details["errors"]
        ]
        raise files_refused(found) from error
    # As people write it: one condition, and the text of a prompt, stand by themselves.
    if len(block.get("until", ())) == 1:
        block["until"] = block["until"][0]
    if "prompt" in block and any(mark in block["prompt"]["text"] for mark in " \n{"):
        block["prompt"] = block["prompt"]["text"]
    return block
