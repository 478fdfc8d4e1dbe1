"""Files that models make: read from replies, stored within bounds, and named in answers."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, FilePart, ModelResponse, TextPart, ThinkingPart, ToolCallPart

from planq.shared.agentic.models.exchange import Ask, ToolCallRequest
from planq.shared.platform.errors import DatabaseUnavailable, StorageFull, StorageUnavailable, Transient
from planq.worker.models.cassette import Recorder, replay
from planq.worker.models.completion import Completion, MadeFile
from planq.worker.models.files import MAX_FILES, FileStore, StoredFiles
from planq.worker.models.messages import state_of
from planq.worker.models.replies import completion_of
from planq.worker.models.request import plan_request
from tests.support.pictures import PNG, WAV

ASK = Ask("job-1", "Draw", "google:x", tenant_id="t")
PICTURE, SOUND = MadeFile("image/png", PNG), MadeFile("audio/wav", WAV)
ID = f"job-1/files/{hashlib.sha256(PNG).hexdigest()[:32]}"
TEXT, CALL, THOUGHT = TextPart("Here."), ToolCallPart("now", {}, "c1"), ThinkingPart("Hm.")


def part(data: bytes = PNG, media_type: str = "image/png") -> FilePart:
    return FilePart(BinaryContent(data, media_type=media_type))


REPLIES: list[tuple[str, list[Any], str, list[MadeFile]]] = [
    ("no file", [TEXT], "Here.", []),
    ("a picture alone", [part()], "", [PICTURE]),
    ("a picture behind a text", [TEXT, part()], "Here.", [PICTURE]),
    ("a picture between texts", [TEXT, part(), TEXT], "Here.\n\nHere.", [PICTURE]),
    ("a picture behind thoughts", [THOUGHT, part()], "", [PICTURE]),
    ("a picture and a sound", [part(), part(WAV, "audio/wav")], "", [PICTURE, SOUND]),
    ("one picture twice", [part(), part()], "", [PICTURE]),
    ("a picture without bytes", [TEXT, part(b"")], "Here.", []),
    ("a picture beside a call", [part(), CALL], "", [PICTURE]),
    ("a picture of another type than is said", [part(PNG, "image/None")], "", [PICTURE]),
    ("a media type that is none", [part(b"x", "image/\r\nx")], "", [MadeFile("application/octet-stream", b"x")]),
]


@pytest.mark.parametrize(("parts", "text", "files"), [row[1:] for row in REPLIES], ids=[row[0] for row in REPLIES])
def test_the_files_of_a_reply_are_read(parts: list[Any], text: str, files: list[MadeFile]) -> None:
    found = completion_of(ModelResponse(parts))

    assert (found.text, list(found.files)) == (text, files)


def test_the_bytes_are_no_part_of_what_a_provider_needs_back() -> None:
    assert state_of(ModelResponse([part(), TEXT, CALL])) is None
    state = state_of(ModelResponse([ThinkingPart("Hm.", signature="s"), part(), CALL]))
    assert [one["part_kind"] for one in state["parts"]] == ["thinking", "tool-call"]


def test_a_cassette_replays_the_files_and_an_exchange_only_describes_them(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    request = plan_request(ASK, [])
    completion = Completion("Here.", files=[PICTURE])

    Recorder(path).append("google:x", request, completion)

    assert list(replay(str(path), request).files) == [PICTURE]
    described = {"media_type": "image/png", "bytes": len(PNG), "sha256": hashlib.sha256(PNG).hexdigest()}
    assert completion.to_json()["files"] == [described]


def stored(files: list[MadeFile], max_bytes: int = 1_000, refusal: Exception | None = None) -> StoredFiles:
    async def put(tenant_id: str, body: bytes, preview: bytes) -> bytes:
        assert (tenant_id, b'"bytes"' in preview) == ("t", True)
        if refusal is not None:
            raise refusal
        return hashlib.sha256(body).digest()

    return asyncio.run(FileStore(put, max_bytes).stored(ASK, "google:x", files))


def test_an_artifact_is_named_by_its_bytes() -> None:
    (made,) = stored([PICTURE]).artifacts

    assert (made.id, made.media_type, made.hash) == (ID, "image/png", hashlib.sha256(PNG).digest())
    assert made.metadata == {"model": "google:x"}


def test_a_file_that_is_not_stored_is_noted() -> None:
    too_large = stored([PICTURE, MadeFile("video/mp4", bytes(1_001))])
    assert [one.id for one in too_large.artifacts] == [ID]
    assert list(too_large.notes) == ["A file (video/mp4, 1001 bytes) was not stored: it may have at most 1000 bytes."]

    full = stored([PICTURE], refusal=StorageFull("expected at most 5 bytes, found 9"))
    assert not full.artifacts
    assert list(full.notes) == [
        f"A file (image/png, {len(PNG)} bytes) was not stored: expected at most 5 bytes, found 9."
    ]

    many = stored([MadeFile("image/png", bytes([n])) for n in range(MAX_FILES + 3)])
    assert len(many.artifacts) == MAX_FILES
    assert list(many.notes) == [f"3 more files were not stored: at most {MAX_FILES} of a reply are."]


@pytest.mark.parametrize("away", [DatabaseUnavailable("away"), StorageUnavailable("away")], ids=repr)
def test_a_file_that_cannot_be_stored_now_is_tried_again(away: Exception) -> None:
    with pytest.raises(Transient, match=r"image/png, \d+ bytes\) cannot be stored: away"):
        stored([PICTURE], refusal=away)


PLAN = '{"type": "tool_calls", "calls": []}'
NOTES = ("A note.",)


@pytest.mark.parametrize(
    ("ask", "completion", "text"),
    [
        (ASK, Completion(""), f"The answer is a file of the type image/png: artifact {ID}\nA note."),
        (ASK, Completion("Here."), "Here.\n\nA note."),
        (ASK, Completion(PLAN), PLAN),
        (Ask("job-1", "", "", answer_schema={}), Completion("{}"), "{}"),
        (ASK, Completion("", [ToolCallRequest("now", {})]), ""),
    ],
    ids=["no text", "text", "plan", "schema", "call"],
)
def test_an_answer_for_people_says_what_became_of_the_files(ask: Ask, completion: Completion, text: str) -> None:
    made = StoredFiles(stored([PICTURE]).artifacts, NOTES)

    assert made.told(ask, completion) == text
