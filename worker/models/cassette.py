"""Cassettes: exchanges with a model in a JSON-lines file, recorded from real calls and replayed by request.

One line is `{"version": 1, "key", "model", "recorded": {request}, "reply"}`, without credentials. The key is a digest
of the request without the model's name, UUIDs, date-times and ids of data fences. The last recording of a request
counts, of the same model if there is one. Many processes may record into one file at once.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from planq.shared.platform.errors import InvalidOutput, Misconfigured, ModelRefused, capped
from planq.shared.platform.redact import without_credentials
from planq.worker.models.completion import NO_COST, Completion
from planq.worker.models.prompts import FENCE_ID
from planq.worker.models.request import ModelRequest

_VERSION = 1
_COMPARED_CHARS = 4_000
"""Maximum length of the texts that are compared to find the closest recorded request; difflib is quadratic."""

_SHOWN_CHARS = 120
"""Maximum length of a text quoted in the description of a difference."""

_SHOWN_DIFFERENCES = 4
"""Maximum number of differences in an error."""

_VOLATILE = (
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "UUID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"), "DATETIME"),
    (FENCE_ID, "DIGEST"),
)


@dataclass(frozen=True, slots=True)
class _Entry:
    line: int
    key: str
    model: str
    purpose: str
    canonical: str
    reply: Mapping[str, Any]


def canonical_request(recorded: Mapping[str, Any]) -> str:
    """Return sorted JSON without the changing parts: equal texts are the same request."""
    text = json.dumps(recorded, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    for pattern, stand_in in _VOLATILE:
        text = pattern.sub(stand_in, text)
    return text


def _key(canonical: str) -> str:
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


class Recorder:
    """Appends exchanges to a cassette; safe to use from many threads and processes at once."""

    def __init__(self, path: Path, secrets: Iterable[str] = ()) -> None:
        """Create `path` or raise `Misconfigured`; `secrets` are removed from what is recorded."""
        self._path = path
        self._secrets = tuple(secrets)
        try:
            os.close(self._open())
        except OSError as error:
            raise Misconfigured(f"cannot record model exchanges in {path}: {error.strerror}") from error

    def append(self, model: str, request: ModelRequest, completion: Completion) -> None:
        """Write one exchange; raise `OSError` if it cannot be written."""
        recorded = without_credentials(request.to_json(), self._secrets)
        entry = {
            "version": _VERSION,
            "key": _key(canonical_request(recorded)),
            "model": model,
            "recorded": recorded,
            # Bytes in base64 may look like a credential.
            "reply": {**without_credentials(completion.to_json(), self._secrets), **completion.files_to_json()},
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


def replay(path: str, request: ModelRequest, model: str = "") -> Completion:
    """Return the recorded reply at no cost; raise `ModelRefused` without one, `InvalidOutput` for damage."""
    recorded = without_credentials(request.to_json())
    canonical = canonical_request(recorded)
    key = _key(canonical)
    entries = read_cassette(path)
    found = [entry for entry in entries if entry.key == key]
    if not found:
        raise ModelRefused(_miss(path, canonical, entries))
    same = [entry for entry in found if entry.model == model]
    chosen = (same or found)[-1]
    try:
        return Completion.from_json(chosen.reply, cost_usd=NO_COST)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidOutput(f"cassette {path}, line {chosen.line}: the reply is damaged: {error!r}") from error


def read_cassette(path: str) -> Sequence[_Entry]:
    """Return the exchanges of a cassette; raise as `replay` does."""
    try:
        state = os.stat(path)
        return _read(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise ModelRefused(f"cannot read the cassette {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidOutput(f"cassette {path}: expected UTF-8 text, found other bytes") from error


@lru_cache(maxsize=4)
def _read(path: str, modified_ns: int, size: int) -> Sequence[_Entry]:
    """Read a file again only after it has changed: a test suite reads one exchange after the other."""
    with open(path, encoding="utf-8") as file:
        return list(_entries(path, file))


def _entries(path: str, lines: Iterable[str]) -> Iterator[_Entry]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            version, recorded, reply = entry["version"], entry["recorded"], entry["reply"]
            if version != _VERSION:
                raise ValueError(f"version {version!r}, expected {_VERSION}")
            canonical = canonical_request(recorded)
            # The key is computed again, so that edits by hand have an effect.
            model, purpose = str(entry.get("model", "")), str(recorded["purpose"])
            yield _Entry(number, _key(canonical), model, purpose, canonical, reply)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidOutput(f"cassette {path}, line {number}: expected an exchange: {error!r}") from error


def _miss(path: str, canonical: str, entries: Sequence[_Entry]) -> str:
    asked = json.loads(canonical)
    purpose = asked["purpose"]
    message = f"cassette {path} has no recording of this {purpose} request"
    remedy = f"If the change is meant, record it: planq record {path} -- COMMAND"
    rivals = [entry for entry in entries if entry.purpose == purpose]
    if not rivals:
        return f"{message}: none of its {len(entries)} exchanges is a {purpose} request. {remedy}"
    last = _last_message(asked)

    def distance(entry: _Entry) -> tuple[int, float]:
        recorded = json.loads(entry.canonical)
        texts = difflib.SequenceMatcher(None, last[:_COMPARED_CHARS], _last_message(recorded)[:_COMPARED_CHARS])
        return len(_differences(recorded, asked)), -texts.quick_ratio()

    closest = min(rivals, key=distance)
    found = _differences(json.loads(closest.canonical), asked)
    more = len(found) - _SHOWN_DIFFERENCES
    shown = [*found[:_SHOWN_DIFFERENCES], *([f"and {more} more"] if more > 0 else [])]
    return f"{message}. The closest is line {closest.line}, which differs in {'; '.join(shown)}. {remedy}"


def _last_message(request: Mapping[str, Any]) -> str:
    messages = request["messages"]
    return str(messages[-1]["content"]) if messages else ""


def _differences(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    found = []
    old, new = recorded["messages"], asked["messages"]
    for number, (one, other) in enumerate(zip(old, new, strict=False)):
        if one != other:
            found.append(f"messages[{number}] ({other.get('role')}): {_changed(one, other)}")
    if len(old) != len(new):
        found.append(f"the number of messages: recorded {len(old)}, now {len(new)}")
    before, after = ({str(tool.get("name")): tool for tool in one["tools"]} for one in (recorded, asked))
    found += [f"the tool {name}: not recorded" for name in after if name not in before]
    found += [f"the tool {name}: recorded, now missing" for name in before if name not in after]
    found += [
        f"the tool {name}: {_changed(before[name], after[name])}"
        for name in after
        if name in before and before[name] != after[name]
    ]
    rest = dict.fromkeys([*recorded, *asked])
    found += [
        f"{name}: {_changed(recorded.get(name), asked.get(name))}"
        for name in rest
        if name not in ("messages", "tools") and recorded.get(name) != asked.get(name)
    ]
    # dictionaries compare without the order of their keys, as the canonical text does
    return found or ["the order of its tools"]


def _changed(recorded: Any, asked: Any) -> str:
    """Return excerpts of two values from shortly before the first difference."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        names = [name for name in dict.fromkeys([*recorded, *asked]) if recorded.get(name) != asked.get(name)]
        if "content" in names or len(names) == 1:
            name = "content" if "content" in names else names[0]
            return f"{name}: {_changed(recorded.get(name), asked.get(name))}"
    old, new = (
        one if isinstance(one, str) else json.dumps(one, ensure_ascii=False, sort_keys=True)
        for one in (recorded, asked)
    )
    same = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    start = max(same - _SHOWN_CHARS // 4, 0)
    before = "…" if start else ""
    was, now = (f"{before}{capped(one[start:], _SHOWN_CHARS)}" for one in (old, new))
    return f"recorded {was!r}, now {now!r}"
