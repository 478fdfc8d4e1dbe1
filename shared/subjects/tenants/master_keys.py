"""The operator's master keys, which seal tenants' secrets."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from planq.shared.platform.lacking import LackedHere

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class MasterKey:
    """A key that wraps data keys; its `id` is from its digest."""

    id: str
    secret: bytes = field(repr=False)


class MasterKeyMissing(LackedHere):
    """This process lacks the master key of a secret."""


def read_master_keys(text: str) -> Sequence[MasterKey]:
    """Return a setting's master keys, newest first; raises `ValueError` without showing them."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    keys = [_master_key(part, number) for number, part in enumerate(parts, start=1)]
    if len({key.id for key in keys}) < len(keys):
        raise ValueError("a key is there twice; name each once")
    return keys


def _master_key(text: str, number: int) -> MasterKey:
    try:
        secret = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise ValueError(
            f"expected keys of {KEY_BYTES} bytes in base64, as `openssl rand -base64 32` makes them; "
            f"number {number} is not"
        )
    return MasterKey(hashlib.sha256(b"planq secret key\0" + secret).hexdigest()[:16], secret)
