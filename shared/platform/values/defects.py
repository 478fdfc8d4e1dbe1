"""Defects of requests and documents: the place, the rule, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planq.shared.platform.errors import InvalidRequest

if TYPE_CHECKING:
    from pydantic import ValidationError


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect; all of one request are reported at once.

    `pointer` is RFC 6901, a plan's path such as `steps[0].id`, or a body's field. `code` is the rule or schema
    keyword, maybe ""; `line` counts from 1.
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
        """Return the message after its place; for files `file:line: place: message`, like compilers."""
        if self.file:
            place = self.file if self.line is None else f"{self.file}:{self.line}"
            return f"{place}: {f'{self.pointer}: ' if self.pointer else ''}{self.message}"
        place = ", ".join(part for part in (f"line {self.line}" if self.line else "", self.pointer) if part)
        return f"{place}: {self.message}" if place else self.message

    def of_plan(self) -> dict[str, Any]:
        """Return the form for plans of agents."""
        return {"path": self.pointer, "rule": self.code, "message": self.message}

    def of_document(self) -> dict[str, Any]:
        """Return the form for documents of people."""
        return {"path": self.pointer, "line": self.line, "message": self.message}

    def of_file(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "path": self.pointer, "message": self.message}

    def of_body(self) -> dict[str, Any]:
        """Return the form for a request's body."""
        return {"in": "body", "field": self.pointer, "message": self.message}


def body_refused(defects: Sequence[Defect], *, most: int | None = None) -> InvalidRequest:
    """Return the error for these defects of a body; its text has the first `most`."""
    listed = "; ".join(one.render() for one in defects[:most])
    return InvalidRequest(listed, errors=[one.of_body() for one in defects])


def defects_of_fields(error: ValidationError, *above: str) -> list[Defect]:
    """Return the defects that a model finds in decoded JSON below the fields `above`."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [Defect(".".join(map(str, (*above, *one["loc"]))), "", one["msg"]) for one in found]
