"""Secret fields of forms.

An answer's secret fields are sealed before it is stored, opened for the asking tool's call only, and erased when its
step ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

SHOWN = "***"
"""Replaces a secret field's value in documents."""

NEEDS_MASTER_KEY = (
    "a form that asks for a secret needs PLANQ_SECRET_KEYS, which seals the answer; set it for every process to a "
    "key that `openssl rand -base64 32` makes"
)

NOT_IN_A_CHAT = (
    "This question asks for a secret, and a chat keeps what is written in it. Answer it in planq's inbox "
    "(/ui/elicitations), or with `planq answer`"
)

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SECRET_WORDS = frozenset(
    {"password", "passwd", "passphrase", "passcode", "secret", "token", "credential", "credentials", "apikey", "cvv"}
)
_SECRET_PAIRS = frozenset({"api key", "access key", "private key", "card number"})


def asks_for_secret(schema: Mapping[str, Any] | None) -> bool:
    return schema is not None and (bool(secret_fields(schema)) or is_marked(schema))


def secret_fields(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return a form's secret properties, by name, title, or a mark at any depth."""
    properties = schema.get("properties")
    fields = properties.items() if isinstance(properties, Mapping) else ()
    return frozenset(name for name, described in fields if is_secret(name, described, schema))


def is_secret(name: str, described: Any, whole: Mapping[str, Any]) -> bool:
    """Return whether a property of the schema `whole` is secret."""
    if not isinstance(described, Mapping):
        return False
    if is_marked(described, whole):
        return True
    if described.get("type") == "boolean":
        return False
    for text in (name, str(described.get("title", ""))):
        words = [word.lower() for word in _WORDS.findall(text)]
        pairs = {" ".join(pair) for pair in pairwise(words)}
        if not _SECRET_WORDS.isdisjoint(words) or not _SECRET_PAIRS.isdisjoint(pairs):
            return True
    return False


def is_marked(schema: Mapping[str, Any], whole: Mapping[str, Any] | None = None) -> bool:
    """Return whether a schema, or one it refers to, has `writeOnly` or the format `password`."""
    seen: set[str] = set()
    open_parts: list[Any] = [schema]
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, Mapping):
            if part.get("format") == "password" or part.get("writeOnly") is True:
                return True
            reference = part.get("$ref")
            if whole is not None and isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                open_parts.append(_referred(whole, reference))
            open_parts.extend(part.values())
        elif isinstance(part, list):
            open_parts.extend(part)
    return False


def _referred(whole: Any, reference: str) -> Any:
    for key in reference.removeprefix("#/").split("/"):
        whole = whole.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(whole, Mapping) else None
    return whole


def parted(schema: Mapping[str, Any], content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an answer as shown, and its secret fields (all if the schema names none)."""
    names = secret_fields(schema) or content.keys()
    secret = {name: value for name, value in content.items() if name in names}
    return {**content, **dict.fromkeys(secret, SHOWN)}, secret


def texts_in(secret: Any) -> Iterator[str]:
    """Yield every text in secret fields, numbers as written."""
    if isinstance(secret, Mapping):
        for value in secret.values():
            yield from texts_in(value)
    elif isinstance(secret, list):
        for value in secret:
            yield from texts_in(value)
    elif secret not in (None, "") and not isinstance(secret, bool):
        yield str(secret)
