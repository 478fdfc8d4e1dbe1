"""JSON in lines and in frames of events is on one line for every reader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from planq.api.batches.documents import json_lines
from planq.api.http.exchange import json_bytes
from planq.api.streams.followers import event_frame, job_frame, text_frame
from planq.shared.platform.values.encoding import JsonText
from planq.shared.subjects.events.position import Position
from planq.shared.subjects.events.store import LoggedEvent
from planq.shared.subjects.streams.contract import Epoch, TextPiece

BREAKS = "a\x0b\x0c\x1c\x1d\x1e\x85b\u2028c\u2029d\r\ne é €"


def test_every_reader_of_lines_finds_the_lines() -> None:
    text = JsonText(json.dumps(BREAKS, ensure_ascii=False).encode())
    values: list[Any] = [{BREAKS: BREAKS}, {"x": text}, {"big": 2**70, "s": BREAKS}]

    async def lines() -> bytes:
        async def given() -> AsyncIterator[Any]:
            for value in values:
                yield value

        return b"".join([piece async for piece in json_lines(given())])

    found = asyncio.run(lines()).decode().splitlines()

    assert [json.loads(line) for line in found] == [{BREAKS: BREAKS}, {"x": BREAKS}, {"big": 2**70, "s": BREAKS}]


STORED = json.dumps(BREAKS, ensure_ascii=False)
EVENT = LoggedEvent(
    Position(1, 2), "t", uuid4(), f"kind{BREAKS}", json.dumps(BREAKS, ensure_ascii=False), datetime.now(UTC)
)
PIECE = TextPiece(Epoch(uuid4(), 0, 1), "t", "planning", 0, BREAKS)


@pytest.mark.parametrize(
    ("frame", "field"),
    [(job_frame(json_bytes({"data": BREAKS})), "data"), (event_frame(EVENT), "data"), (text_frame(PIECE), "text")],
    ids=["job", "event", "text"],
)
def test_every_reader_of_lines_finds_the_data_of_an_event(frame: bytes, field: str) -> None:
    lines = dict(line.split(": ", 1) for line in frame.decode().splitlines() if line)

    assert lines.keys() <= {"id", "event", "data"}
    assert json.loads(lines["data"])[field] == BREAKS
