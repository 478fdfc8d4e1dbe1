"""Cassettes: exchanges with a model in a JSON-lines file, recorded from real calls and replayed by request.

One line is `{"version": 1, "key", "model", "recorded": {request}, "reply"}`. The key is a digest of the request
without the model's name and without what changes from run to run (UUIDs, date-times, the ids of data fences), so that
a recorded job replays although its artifact ids are new. When a request was recorded several times, the last one
counts. Many processes may record into one file at once: a line is one `write` to a file opened for appending.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planq.shared.domain.errors import InvalidOutput, Misconfigured, ModelRefused, capped
from planq.worker.llm.completion import NO_COST, Completion
from planq.worker.llm.prompts import FENCE_ID
from planq.worker.llm.request import ModelRequest

_VERSION = 1
_COMPARED_CHARS = 4_000
"""How much of a request is compared when the closest recorded one is looked for; difflib is quadratic."""

_VOLATILE = (
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "UUID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"), "DATETIME"),
    (FENCE_ID, "DIGEST"),
)


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    purpose: str
    canonical: str
    reply: Mapping[str, Any]


def canonical_request(recorded: Mapping[str, Any]) -> str:
    """Return the text that two requests must share to be the same: sorted JSON without the changing parts."""
    text = json.dumps(recorded, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    for pattern, stand_in in _VOLATILE:
        text = pattern.sub(stand_in, text)
    return text


def _key(canonical: str) -> str:
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


class Recorder:
    """Appends exchanges to a cassette; safe to use from many threads and processes at once."""

    def __init__(self, path: Path) -> None:
        """Raise `Misconfigured` when `path` cannot be opened for appending; create it when it is not there."""
        self._path = path
        try:
            os.close(self._open())
        except OSError as error:
            raise Misconfigured(f"cannot record model exchanges in {path}: {error.strerror}") from error

    def append(self, model: str, request: ModelRequest, completion: Completion) -> None:
        """Add one exchange and return once it is written; raise `OSError` when it cannot be."""
        recorded = request.to_json()
        entry = {
            "version": _VERSION,
            "key": _key(canonical_request(recorded)),
            "model": model,
            "recorded": recorded,
            "reply": completion.to_json(),
        }
        # ASCII only: a lone surrogate in a model's text could not be encoded otherwise.
        line = (json.dumps(entry, sort_keys=True) + "\n").encode("ascii")
        descriptor = self._open()
        try:
            # O_APPEND makes one write one line on local file systems; the lock covers the short write of a full disk.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            start = os.lseek(descriptor, 0, os.SEEK_END)
            written = os.write(descriptor, line)
            if written != len(line):
                os.ftruncate(descriptor, start)
                raise OSError(f"wrote {written} of {len(line)} bytes")
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def replay(path: str, request: ModelRequest) -> Completion:
    """Return the recorded reply to `request`; nothing is spent, so the cost is zero.

    Raises `ModelRefused` when the file cannot be read or holds no such request (the message names the closest one),
    and `InvalidOutput` when a line of it is damaged.
    """
    recorded = request.to_json()
    canonical = canonical_request(recorded)
    key = _key(canonical)
    try:
        entries = list(_entries(path))
    except OSError as error:
        raise ModelRefused(f"cannot read the cassette {path}: {error.strerror}") from error
    found = next((entry for entry in reversed(entries) if entry.key == key), None)
    if found is None:
        raise ModelRefused(_miss(path, recorded, canonical, entries))
    try:
        return Completion.from_json(found.reply, cost_usd=NO_COST)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidOutput(f"cassette {path}: the reply of {key[:12]} is damaged: {error!r}") from error


def _entries(path: str) -> Iterator[_Entry]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                version, recorded, reply = entry["version"], entry["recorded"], entry["reply"]
                if version != _VERSION:
                    raise ValueError(f"version {version!r}, expected {_VERSION}")
                canonical = canonical_request(recorded)
                # The key is computed again, so that a cassette edited by hand means what it says.
                yield _Entry(_key(canonical), str(recorded["purpose"]), canonical, reply)
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                raise InvalidOutput(f"cassette {path}, line {number}: expected an exchange: {error!r}") from error


def _miss(path: str, recorded: Mapping[str, Any], canonical: str, entries: list[_Entry]) -> str:
    purpose = str(recorded["purpose"])
    asked = _last_message(recorded)
    message = f"cassette {path} has no recording of this {purpose} request (last message: {capped(asked, 200)!r})"
    rivals = [entry for entry in entries if entry.purpose == purpose]
    if not rivals:
        return f"{message}; none of its {len(entries)} exchanges is a {purpose} request. Record it with PLANQ_RECORD."
    wanted = canonical[:_COMPARED_CHARS]

    def likeness(entry: _Entry) -> float:
        return difflib.SequenceMatcher(None, wanted, entry.canonical[:_COMPARED_CHARS]).quick_ratio()

    closest = max(rivals, key=likeness)
    heard = _last_message(json.loads(closest.canonical))
    place = _first_difference(canonical, closest.canonical)
    return (
        f"{message}; the closest recording is {closest.key[:12]} (last message: {capped(heard, 200)!r}; {place})."
        " Record it again with PLANQ_RECORD."
    )


def _last_message(recorded: Mapping[str, Any]) -> str:
    messages = recorded["messages"]
    return str(messages[-1]["content"]) if messages else ""


def _first_difference(wanted: str, recorded: str) -> str:
    pairs = zip(wanted, recorded, strict=False)
    at = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(wanted), len(recorded)))
    window = slice(max(at - 20, 0), at + 40)
    return f"first difference: asked {wanted[window]!r}, recorded {recorded[window]!r}"
