"""What a power cut, a full disk or a bad disk makes of the embedded Valkey's files. Each takes the data folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

APPENDED = "appendonlydir"

Tear = Callable[[Path], None]


def _file(pattern: str, data: Path) -> Path:
    """Return the newest of Valkey's append-only files of one kind."""
    return max((data / APPENDED).glob(pattern))


def _rewritten(pattern: str, change: Callable[[bytes], bytes], data: Path) -> None:
    file = _file(pattern, data)
    file.write_bytes(change(file.read_bytes()))


def _removed(pattern: str, data: Path) -> None:
    _file(pattern, data).unlink()


def _replaced(pattern: str, data: Path) -> None:
    file = _file(pattern, data)
    file.unlink()
    file.mkdir()


def _flattened(data: Path) -> None:
    shutil.rmtree(data / APPENDED)
    (data / APPENDED).write_text("x")


def _file_instead(data: Path) -> None:
    shutil.rmtree(data)
    data.write_text("x")


INCREMENTS, BASE, MANIFEST = "*.incr.aof", "*.base.*", "*.manifest"

FATAL: Mapping[str, Tear] = {
    "100 zero bytes at the end": partial(_rewritten, INCREMENTS, lambda b: b + bytes(100)),
    "a block of zero bytes at the end": partial(_rewritten, INCREMENTS, lambda b: b + bytes(4096)),
    "zero bytes where the end was": partial(_rewritten, INCREMENTS, lambda b: b[:-200] + bytes(200)),
    "garbage": partial(_rewritten, INCREMENTS, lambda b: os.urandom(len(b))),
    "garbage in the middle": partial(_rewritten, INCREMENTS, lambda b: b[: len(b) // 2] + b"\r\n\xff" + b[-40:]),
    "a command that does not exist": partial(_rewritten, INCREMENTS, lambda b: b + b"*1\r\n$3\r\nNIL\r\n"),
    "increments missing": partial(_removed, INCREMENTS),
    "a folder for increments": partial(_replaced, INCREMENTS),
    "base missing": partial(_removed, BASE),
    "base cut short": partial(_rewritten, BASE, lambda b: b[:-5]),
    "base garbage": partial(_rewritten, BASE, lambda b: b"x" * len(b)),
    "manifest empty": partial(_rewritten, MANIFEST, lambda _: b""),
    "manifest cut short": partial(_rewritten, MANIFEST, lambda b: b[:-10]),
    "manifest of zero bytes": partial(_rewritten, MANIFEST, lambda b: bytes(len(b))),
    "manifest garbage": partial(_rewritten, MANIFEST, lambda b: b"\xff" * len(b)),
    "a folder for the manifest": partial(_replaced, MANIFEST),
    "a file for the folder of the files": _flattened,
    "a file for the folder": _file_instead,
}
"""A server does not start on these by itself."""

HARMLESS: Mapping[str, Tear] = {
    "increments cut short": partial(_rewritten, INCREMENTS, lambda b: b[:-10]),
    "increments empty": partial(_rewritten, INCREMENTS, lambda _: b""),
    "manifest missing": partial(_removed, MANIFEST),
}
"""On these it starts with what it can read."""
