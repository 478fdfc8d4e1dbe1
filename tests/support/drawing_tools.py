"""Tools that make files, for tests with real worker processes: `PLANQ_TOOLS=tests.support.drawing_tools`."""

from __future__ import annotations

import struct
import zlib

from typing_extensions import TypedDict

from planq.worker.tools import Artifact, ToolResponse, tool


class Drawn(TypedDict):
    """What later steps may know of a drawing."""

    width: int
    colour: str


def png(width: int, colour: bytes) -> bytes:
    """Return a square of one colour as a PNG."""
    rows = (b"\x00" + colour * width) * width
    head = struct.pack(">IIBBBBB", width, width, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows, 0)) + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@tool(name="draw_square", effect="idempotent")
async def draw_square(width: int) -> ToolResponse[Drawn]:
    """Draw a red square."""
    square = Artifact(f"squares/{width}", png(width, b"\xff\x00\x00"), media_type="image/png")
    return ToolResponse(f"A red square, {width} wide.", {"width": width, "colour": "red"}, [square])


@tool(name="print_square", effect="idempotent")
def print_square(text: str) -> Artifact[bytes]:
    """Print a square as text, in a process of its own."""
    return Artifact(f"prints/{text}", text * 100_000, media_type="text/plain")
