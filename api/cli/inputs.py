"""Arguments of commands: JSON and plans in a file or on standard input (`-`), and NAME=VALUE pairs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from planq.shared.platform.errors import InvalidRequest, Misconfigured
from planq.shared.platform.values.decoding import RepeatedKey, decode
from planq.shared.platform.values.defects import Defect

if TYPE_CHECKING:
    from planq.shared.agentic.source import DocumentSource

STANDARD_INPUT = "-"


def read_text(name: str, what: str) -> str:
    """Return the text of a file or of standard input.

    Raises `Misconfigured` when it cannot be read, `InvalidRequest` when it is no UTF-8.
    """
    try:
        raw = sys.stdin.buffer.read() if name == STANDARD_INPUT else Path(name).read_bytes()
    except OSError as error:
        raise Misconfigured(f"{what}: cannot read {name!r} ({error.strerror})") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{what}: expected UTF-8, found other bytes at {error.start}") from error


def read_json(name: str, what: str) -> Any:
    """Return the JSON value in a file or on standard input; raises as `read_text`, with the place of a defect."""
    return parse_json(read_text(name, what), what)


def parse_json(text: str, what: str) -> Any:
    """Return the value of a JSON text; raises `InvalidRequest` with the place of a defect.

    Read as strictly as the API reads a body, which would not see any more that a key stood there twice.
    """
    try:
        return decode(text, is_unique=True)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"{what}: expected JSON, found a mistake at {place}: {error.msg}") from error
    except RepeatedKey as error:
        raise InvalidRequest(f"{what}: {error}, and which value counts is open; send it once") from error
    except RecursionError as error:
        raise InvalidRequest(f"{what}: nested too deeply to be read") from error
    except ValueError as error:
        raise InvalidRequest(f"{what}: expected JSON, {error}") from error


def json_or_file(given: str, what: str) -> Any:
    """Return the value of a JSON text, or of the file in `@FILE`; raises as `read_json`."""
    return read_json(given[1:], what) if given.startswith("@") else parse_json(given, what)


def pairs_of(given: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Return the names and values of NAME=VALUE arguments of an option; raises `typer.BadParameter`."""
    pairs = [item.partition("=") for item in given]
    for item, (name, sign, _) in zip(given, pairs, strict=True):
        if not name or not sign:
            raise typer.BadParameter(f"expected NAME=VALUE, found {item[:80]!r}", param_hint=option)
    return [(name, value) for name, _, value in pairs]


def number(name: str, value: str, option: str) -> int | float:
    """Return a number that was given with an option; raises `typer.BadParameter`."""
    try:
        given = float(value)
    except ValueError:
        given = float("nan")
    if not abs(given) < float("inf"):
        raise typer.BadParameter(f"{name}: expected a number, found {value[:80]!r}", param_hint=option)
    return int(given) if given.is_integer() else given


def budget_of(given: Sequence[str]) -> dict[str, Any]:
    """Return a budget as the API takes it; `ask` is true or false, all else a number. The API knows the names."""
    option = "--budget"
    return {
        name: _flag(name, value, option) if name == "ask" else number(name, value, option)
        for name, value in pairs_of(given, option)
    }


def _flag(name: str, value: str, option: str) -> bool:
    if value not in ("true", "false"):
        raise typer.BadParameter(f"{name}: expected true or false, found {value[:80]!r}", param_hint=option)
    return value == "true"


def files_refused(defects: Sequence[Defect]) -> InvalidRequest:
    """Return the refusal of files with these defects, each with its file and its line."""
    ordered = sorted(defects, key=lambda one: one.line or 0)
    return InvalidRequest("; ".join(one.render() for one in ordered), errors=[one.of_file() for one in ordered])


def read_plan_file(name: str) -> DocumentSource:
    """Return the plan in a file, or on standard input for `-`, of YAML with its lines.

    A file whose name ends in .yaml or .yml is YAML, and so is a standard input that does not begin with a brace.
    Raises `InvalidRequest` with the place of what is neither, and `Misconfigured` where it cannot be read.
    """
    from planq.shared.agentic.source import DocumentSource, read_source

    text = read_text(name, "the plan")
    is_yaml = name.lower().endswith((".yaml", ".yml"))
    if not is_yaml and (name != STANDARD_INPUT or text.lstrip().startswith(("{", "[")) or not text.strip()):
        return DocumentSource(parse_json(text, "the plan"))
    source = read_source(text)
    if source.defects:
        raise files_refused([replace(one, file=name) for one in source.defects])
    return source
