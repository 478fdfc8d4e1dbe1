"""Small files of each kind that an input may have as a part."""

from __future__ import annotations

import base64
import struct
import zlib


def png(red: int = 255) -> bytes:
    """Return a picture of one pixel."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(bytes([0, red, 0, 0]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


PNG = png()
PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
WAV = b"RIFF" + struct.pack("<I4s4sIHHIIHH4sI", 36, b"WAVE", b"fmt ", 16, 1, 1, 8_000, 8_000, 1, 8, b"data", 0)


def base64_of(data: bytes) -> str:
    """Return bytes as they stand in JSON."""
    return base64.b64encode(data).decode()
