"""A skill: a named text of instructions that agents list; Markdown, kept as it was written."""

from __future__ import annotations

from dataclasses import dataclass

from shared.domain.agents.checks import AGENT_NAME
from shared.domain.agents.marked import MAX_CHARS, Defect
from shared.domain.errors import InvalidRequest
from shared.domain.schemas import excerpt


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that can be stored."""

    name: str
    text: str


def parse_skill(name: str, source: str | bytes) -> Skill:
    """Return a skill; its name is one that agents could have, its text says something and can be stored.

    Raises `InvalidRequest` whose `details["errors"]` holds every defect as `{path, line, message}`.
    """
    found = [] if AGENT_NAME.fullmatch(name) else [Defect("/name", _expected(name))]
    text = ""
    try:
        text = source if isinstance(source, str) else source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        assert isinstance(source, bytes)
        found.append(Defect("", "the text is not UTF-8", source[: error.start].count(b"\n") + 1))
    else:
        found += _text_defects(text)
    if found:
        told = "; ".join(defect.render() for defect in found)
        raise InvalidRequest(f"the skill is not valid: {told}", errors=[defect.to_json() for defect in found])
    return Skill(name, text)


def _expected(name: str) -> str:
    return f"expected a letter or digit, then at most 127 letters, digits, '_', '-' or '.'; found {excerpt(name)}"


def _text_defects(text: str) -> list[Defect]:
    if not text.strip():
        return [Defect("", "expected instructions, found an empty text")]
    if len(text) > MAX_CHARS:
        return [Defect("", f"the text has {len(text)} characters; at most {MAX_CHARS} are taken")]
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        return [Defect("", "the text holds a NUL character, which cannot be stored", line)]
    return []
