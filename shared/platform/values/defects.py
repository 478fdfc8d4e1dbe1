"""Defects of what was sent: where something is wrong, which rule it breaks, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planq.shared.platform.errors import InvalidRequest

if TYPE_CHECKING:
    from pydantic import ValidationError


@dataclass(frozen=True, slots=True)
class Defect:
    """One thing that is wrong; all of one request are told at once.

    `pointer` leads to it: RFC 6901, in a plan of agents a path such as `steps[0].id`, of a body `channel`. `code`
    names the rule, of a schema its keyword, and is empty where a rule has no name; `message` is for people; `line`
    counts from 1; `file` names the file where files are read.
    """

    pointer: str
    code: str
    message: str
    line: int | None = None
    file: str = ""

    @classmethod
    def at(cls, pointer: str, code: str, predicate: str) -> Defect:
        return cls(pointer, code, f"{pointer} {predicate}")

    def render(self) -> str:
        """Return the sentence with its place in front; of a file `file:line: place: what`, as compilers write it."""
        if self.file:
            place = self.file if self.line is None else f"{self.file}:{self.line}"
            return f"{place}: {f'{self.pointer}: ' if self.pointer else ''}{self.message}"
        place = ", ".join(part for part in (f"line {self.line}" if self.line else "", self.pointer) if part)
        return f"{place}: {self.message}" if place else self.message

    def of_plan(self) -> dict[str, Any]:
        """Return the form in which errors carry a defect of a plan of agents."""
        return {"path": self.pointer, "rule": self.code, "message": self.message}

    def of_document(self) -> dict[str, Any]:
        """Return the form in which errors carry a defect of a document that people write."""
        return {"path": self.pointer, "line": self.line, "message": self.message}

    def of_file(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "path": self.pointer, "message": self.message}

    def of_body(self) -> dict[str, Any]:
        """Return the form in which errors carry a defect of a request's body."""
        return {"in": "body", "field": self.pointer, "message": self.message}


def body_refused(defects: Sequence[Defect], *, most: int | None = None) -> InvalidRequest:
    """Return the refusal of a body with these defects; its text names the first `most`, None for all."""
    listed = "; ".join(one.render() for one in defects[:most])
    return InvalidRequest(listed, errors=[one.of_body() for one in defects])


def defects_of_fields(error: ValidationError, *above: str) -> list[Defect]:
    """Return what a model finds wrong in decoded JSON, field by field; `above` is where that JSON stands."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [Defect(".".join(map(str, (*above, *one["loc"]))), "", one["msg"]) for one in found]
