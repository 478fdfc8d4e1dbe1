"""Files that a model creates: their bytes are stored before its reply is used; its job lists them as artifacts."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from planq.shared.agentic.models.exchange import Ask
from planq.shared.agentic.plan.forms import QUESTION_TYPES
from planq.shared.agentic.plan.interpret import DIRECT, TOOL_CALLS, decision_in
from planq.shared.kernel.usage import MadeArtifact
from planq.shared.platform.errors import DatabaseUnavailable, StorageFull, StorageUnavailable, Transient
from planq.worker.models.completion import Completion, MadeFile

MAX_FILES = 16
"""Maximum number of files of one reply that are stored."""

_DECISIONS = (DIRECT, TOOL_CALLS, *QUESTION_TYPES)

Put: TypeAlias = Callable[[str, bytes, bytes], Awaitable[bytes]]
"""Stores a tenant's bytes with the JSON of their preview, and returns their SHA-256 (`Payloads.put`)."""


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """The stored files of a reply, and a sentence for each file that was not stored."""

    artifacts: Sequence[MadeArtifact] = ()
    notes: Sequence[str] = ()

    def told(self, ask: Ask, completion: Completion) -> str:
        """Return the text of a reply; without one its files, and after it notes on files that were not stored."""
        if completion.tool_calls:
            return completion.text
        if not completion.text.strip():
            return "\n".join([*map(_named, self.artifacts), *self.notes])
        is_data = ask.answer_schema is not None or decision_in(completion.text, _DECISIONS) is not None
        return completion.text if is_data else "\n\n".join([completion.text, *self.notes])


def _named(artifact: MadeArtifact) -> str:
    return f"The answer is a file of the type {artifact.media_type}: artifact {artifact.id}"


@dataclass(frozen=True, slots=True)
class FileStore:
    put: Put = field(repr=False)
    max_bytes: int

    async def stored(self, ask: Ask, model: str, files: Sequence[MadeFile]) -> StoredFiles:
        """Store files under ids that a repeat derives, too; raise `Transient` if they cannot be stored now."""
        artifacts: list[MadeArtifact] = []
        notes: list[str] = []
        for number, file in enumerate(files):
            if number == MAX_FILES:
                notes.append(f"{len(files) - number} more files were not stored: at most {MAX_FILES} of a reply are.")
                break
            shown = f"{file.media_type}, {len(file.data)} bytes"
            if len(file.data) > self.max_bytes:
                notes.append(f"A file ({shown}) was not stored: it may have at most {self.max_bytes} bytes.")
                continue
            preview = {"value": {"media_type": file.media_type, "bytes": len(file.data)}, "is_whole": False}
            try:
                digest = await self.put(ask.tenant_id, file.data, json.dumps(preview).encode())
            except StorageFull as error:
                notes.append(f"A file ({shown}) was not stored: {error.message}.")
                continue
            except (DatabaseUnavailable, StorageUnavailable) as error:
                raise Transient(f"a file that the model made ({shown}) cannot be stored: {error.message}") from error
            id = f"{ask.job_id}/files/{digest.hex()[:32]}"
            artifacts.append(MadeArtifact(id, file.media_type, digest, {"model": model}))
        return StoredFiles(artifacts, notes)
