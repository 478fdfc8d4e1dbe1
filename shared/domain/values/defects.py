"""Defects of what was sent: where something is wrong, which rule it breaks, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Defect:
    """One thing that is wrong; all of one request are told at once.

    `pointer` leads to it: RFC 6901, in a plan of agents a path such as `steps[0].id`. `code` names the rule, of
    a schema its keyword, and is empty where a rule has no name; `message` is for people; `line` counts from 1.
    """

    pointer: str
    code: str
    message: str
    line: int | None = None

    @classmethod
    def at(cls, pointer: str, code: str, predicate: str) -> Defect:
        """Return a defect whose message is the place and a predicate."""
        return cls(pointer, code, f"{pointer} {predicate}")

    def render(self) -> str:
        """Return the sentence with its place in front."""
        place = ", ".join(part for part in (f"line {self.line}" if self.line else "", self.pointer) if part)
        return f"{place}: {self.message}" if place else self.message

    def of_plan(self) -> dict[str, Any]:
        """Return the form in which errors carry a defect of a plan of agents."""
        return {"path": self.pointer, "rule": self.code, "message": self.message}

    def of_document(self) -> dict[str, Any]:
        """Return the form in which errors carry a defect of a document that people write."""
        return {"path": self.pointer, "line": self.line, "message": self.message}

    def of_body(self) -> dict[str, Any]:
        """Return the form in which errors carry a defect of a request's body."""
        return {"in": "body", "field": self.pointer, "message": self.message}
