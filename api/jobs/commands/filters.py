"""Which jobs a command means: the options by which `planq jobs` and `planq act` select them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from inspect import Parameter
from typing import Annotated, Any

import typer

from planq.shared.subjects.jobs.selection import FILTER_FIELDS, FilterField


def filter_options() -> list[Parameter]:
    """Return the parameters of a command for every field of a filter."""
    return [
        Parameter(one.option, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=_type(one))
        for one in FILTER_FIELDS
    ]


def _type(one: FilterField) -> Any:
    kind: Any = list[str] if one.name == "metadata" else one.kind
    lowest = 0 if one.kind is float else None
    return Annotated[kind | None, typer.Option(metavar=one.metavar, min=lowest, help=one.help, show_default=False)]


def job_filter(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the API's filter that are given; raises `typer.BadParameter` for metadata without `=`."""
    from planq.api.cli.inputs import pairs_of

    known = {one.name: value for one in FILTER_FIELDS if (value := given.get(one.option)) is not None}
    wanted = {name: value.value if isinstance(value, StrEnum) else value for name, value in known.items()}
    if metadata := wanted.pop("metadata", None):
        wanted["metadata"] = dict(pairs_of(metadata, "--metadata"))
    return wanted
