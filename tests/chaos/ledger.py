"""The ledger: what the tools really did, told by a file of their own and not by planq.

A line is `time phase key attempt pid effect tool`; `key` is the idempotency key (`job/step`), `phase` is `start`,
`finish` or, of `unsafe` calls, `effect`: what must not happen twice happens then, late in the call. `hold` is a call
that takes the interpreter for good. Each line is one write to a file opened for appending, which Linux keeps whole
between processes; the lines of `unsafe` calls are forced to the disk before the call goes on.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

START, FINISH, EFFECT, HOLD = "start", "finish", "effect", "hold"
PURE, UNSAFE = "pure", "unsafe"

NEVER_REPEATED = "chaos_effect"
"""The unsafe tool whose calls are not even begun twice: nobody finds out about them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line; `at` in seconds since 1970."""

    at: float
    phase: str
    key: str
    attempt: int
    pid: int
    effect: str
    tool: str

    @property
    def line(self) -> str:
        """The entry as it is written."""
        return f"{self.at:.6f} {self.phase} {self.key} {self.attempt} {self.pid} {self.effect} {self.tool}\n"


def write(path: Path, phase: str, key: str, attempt: int, effect: str, tool: str) -> None:
    """Append an entry of this process, durably when its effect class is `unsafe`."""
    entry = Entry(time.time(), phase, key, attempt, os.getpid(), effect, tool)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, entry.line.encode())
        if effect == UNSAFE:
            os.fsync(file)
    finally:
        os.close(file)


def parse(text: str) -> list[Entry]:
    """Return the entries of a ledger in the order in which they were written."""
    entries = []
    for line in text.splitlines():
        at, phase, key, attempt, pid, effect, tool = line.split(" ")
        entries.append(Entry(float(at), phase, key, int(attempt), int(pid), effect, tool))
    return entries


def read(path: Path) -> list[Entry]:
    """Return the entries of the file, none when no tool has run yet."""
    return parse(path.read_text()) if path.exists() else []


def read_tail(path: Path, size: int = 100_000) -> list[Entry]:
    """Return the entries in about the last `size` bytes of the file: what is going on now."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - size))
        text = file.read().decode()
    return parse(text if end <= size else text.partition("\n")[2])


def open_calls(entries: Iterable[Entry], pid: int) -> list[Entry]:
    """Return the starts of a process that no finish of the same call follows: what its death interrupts."""
    running: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        if entry.pid != pid:
            continue
        if entry.phase == START:
            running[entry.key, entry.attempt] = entry
        elif entry.phase == FINISH:
            running.pop((entry.key, entry.attempt), None)
    return list(running.values())


def starts(entries: Iterable[Entry]) -> Counter[str]:
    """Return how often the call under each key was begun."""
    return Counter(entry.key for entry in entries if entry.phase == START)


def finishes(entries: Iterable[Entry]) -> Counter[str]:
    """Return how often the call under each key came to its end, or an `unsafe` one to its effect."""
    return Counter(entry.key for entry in entries if entry.phase == (EFFECT if entry.effect == UNSAFE else FINISH))


def has_entered(path: Path, key: str, phase: str) -> bool:
    """Return whether a call under the key has come to `phase`: with `EFFECT`, whether its effect has happened."""
    return any(entry.key == key and entry.phase == phase for entry in read(path))


def duplicate_effects(entries: Sequence[Entry]) -> list[str]:
    """Return the keys whose effect happened more than once, or may have: what is never repeated was begun again."""
    happened = Counter(entry.key for entry in entries if entry.phase == EFFECT)
    begun = starts(entry for entry in entries if entry.tool == NEVER_REPEATED)
    return sorted(key for counted in (happened, begun) for key, count in counted.items() if count > 1)


def repeated_after_success(entries: Iterable[Entry], succeeded: Mapping[str, tuple[int, float]]) -> list[str]:
    """Return the keys of finished steps whose call was begun again.

    `succeeded` says for a key with which attempt its step succeeded, and when (seconds since 1970). Begun again
    means: the attempt that succeeded was begun twice, or a later attempt was begun, or any attempt after the success.
    One call of a `pure` step may have been thrown away with the unit that it was in, and a process that was frozen
    between a claim and its call begins a pure one when it thaws: only the calls of writes look at the lease first.
    """
    found = set()
    begun: dict[str, Counter[int]] = defaultdict(Counter)
    for entry in entries:
        if entry.phase != START or entry.key not in succeeded:
            continue
        attempt, at = succeeded[entry.key]
        begun[entry.key][entry.attempt] += 1
        is_pure = entry.effect == PURE
        is_late = entry.at > at and not (is_pure and entry.attempt < attempt)
        if entry.attempt > attempt or is_late or begun[entry.key][attempt] > 1 + is_pure:
            found.add(entry.key)
    return sorted(found)
