"""The files that `planq agents apply` was pointed at: which are agents, which skills, and what is wrong with them.

    NAME.yaml  NAME.yml  NAME.json    an agent; its name stands in the document
    skills/NAME.md                    a skill; also NAME.md where the file itself is named
    NAME/SKILL.md                     a skill

Everything is read and checked before anything is sent, so that a mistake in the last file leaves no half of a team.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planq.api.cli.reading import FoundFile, find_files
from planq.shared.agentic.agents.checks import parse_skill
from planq.shared.agentic.agents.document import parse_agent
from planq.shared.platform.errors import InvalidRequest
from planq.shared.platform.values.defects import Defect

_MAX_BYTES = 2 * 1024 * 1024
"""Read of a file; what is valid is far shorter."""

_MEDIA_TYPES = {".yaml": "application/yaml", ".yml": "application/yaml", ".json": "application/json"}


@dataclass(frozen=True, slots=True)
class PreparedDocument:
    """A document that can be sent: `kind` is `agents` or `skills`, as in its address."""

    kind: str
    name: str
    body: bytes
    media_type: str
    source: str


def prepare(paths: Iterable[Path]) -> tuple[Sequence[PreparedDocument], Sequence[Defect]]:
    """Read every agent and skill in these files and folders; skills come first, for agents list them.

    Returns what can be sent and everything that is wrong; other files in a folder are passed over.
    """
    named = {path.resolve() for path in paths if path.is_file()}
    ready: dict[tuple[str, str], PreparedDocument] = {}
    defects: list[Defect] = []
    for found in find_files(paths):
        is_named = found.path.resolve() in named
        kind = _kind(found.path, is_named=is_named)
        if kind is None:
            if is_named:
                message = "expected .yaml, .yml or .json (an agent) or .md (a skill)"
                defects.append(_file_defect(found.source, message))
            continue
        one = _read(found, kind, defects)
        if one is None:
            continue
        earlier = ready.setdefault((one.kind, one.name), one)
        if earlier is not one:
            defects.append(_file_defect(one.source, f"{one.name!r} stands in {earlier.source} already"))
    return sorted(ready.values(), key=lambda one: (one.kind != "skills", one.name)), defects


def _kind(path: Path, *, is_named: bool) -> str | None:
    if path.suffix.lower() in _MEDIA_TYPES:
        return "agents"
    is_skill = path.name == "SKILL.md" or path.parent.name == "skills" or is_named
    return "skills" if path.suffix.lower() == ".md" and is_skill else None


def _read(found: FoundFile, kind: str, defects: list[Defect]) -> PreparedDocument | None:
    if found.reason is not None:
        defects.append(_file_defect(found.source, found.reason))
        return None
    try:
        with found.path.open("rb") as file:
            body = file.read(_MAX_BYTES + 1)
    except OSError as error:
        defects.append(_file_defect(found.source, f"cannot be read ({error.strerror})"))
        return None
    try:
        return _checked(found, kind, body)
    except InvalidRequest as error:
        defects += _defects(found.source, error)
        return None


def _checked(found: FoundFile, kind: str, body: bytes) -> PreparedDocument:
    if kind == "agents":
        document = parse_agent(body)
        return PreparedDocument(kind, document.name, body, _MEDIA_TYPES[found.path.suffix.lower()], found.source)
    path = found.path
    skill = parse_skill(path.parent.name if path.name == "SKILL.md" else path.stem, body)
    return PreparedDocument(kind, skill.name, skill.text.encode(), "text/markdown", found.source)


def _defects(source: str, error: InvalidRequest) -> Iterator[Defect]:
    errors = error.details.get("errors") or [{"message": error.message}]
    for one in errors:
        yield Defect(one.get("path") or "", "", one["message"], one.get("line"), source)


def _file_defect(source: str, message: str) -> Defect:
    return Defect("", "", message, file=source)
