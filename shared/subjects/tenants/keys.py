"""API keys: their form, digest and scopes.

    planq_4f…(43 letters and digits)…XyZ9aB

A key is 256 random bits and a checksum, by which typos and leaked keys are recognized. Its SHA-256 is stored: with
this many random bits a fast digest is safe, and every request needs one.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable
from enum import StrEnum

from planq.shared.platform.errors import InvalidRequest, capped

ENTROPY_BYTES = 32

_MARK = "planq_"
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_CHARS = 43
"""256 bits in base 62."""

_CHECK_CHARS = 6
"""The 32 bits of a CRC in base 62."""

_SHOWN_CHARS = 8
"""Random characters shown in lists: 47 of 256 bits."""

_KEY = re.compile(rf"{_MARK}[0-9A-Za-z]{{{_RANDOM_CHARS + _CHECK_CHARS}}}", re.ASCII)


class KeyScope(StrEnum):
    """What a key allows: jobs, conversations, approvals, or administration."""

    JOBS = "jobs"
    MESSAGES = "messages"
    APPROVE = "approve"
    ADMIN = "admin"


def new_key(entropy: bytes) -> str:
    """Return the key of 32 random bytes."""
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"expected {ENTROPY_BYTES} random bytes, found {len(entropy)}")
    body = f"{_MARK}{_in_base_62(int.from_bytes(entropy, 'big'), _RANDOM_CHARS)}"
    return body + _checksum(body)


def is_key(text: str) -> bool:
    """True if a text has the form and checksum of a key, known or not."""
    return _KEY.fullmatch(text) is not None and text[-_CHECK_CHARS:] == _checksum(text[:-_CHECK_CHARS])


def is_meant_as_key(text: str) -> bool:
    return text.startswith(_MARK)


def prefix_of(key: str) -> str:
    return key[: len(_MARK) + _SHOWN_CHARS]


def key_digest(key: str) -> bytes:
    """Return the SHA-256 of a key, or of any text."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def read_scopes(names: Iterable[str]) -> frozenset[KeyScope]:
    """Return scopes by name, at least one; raises `InvalidRequest`."""
    given = list(names)
    known = ", ".join(KeyScope)
    if not given:
        raise InvalidRequest(f"scopes: expected at least one of {known}, found none")
    if unknown := [name for name in given if name not in set(KeyScope)]:
        raise InvalidRequest(f"scopes: unknown scope {capped(unknown[0], 80)!r}; known scopes are {known}")
    return frozenset(map(KeyScope, given))


def _checksum(body: str) -> str:
    return _in_base_62(zlib.crc32(body.encode("ascii")), _CHECK_CHARS)


def _in_base_62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
