"""Hide addresses' credentials and queries, and known secrets, in text that leaves the process, as `…`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

HIDDEN = "…"

LEAST_SECRET_CHARS = 6
"""Shorter secrets are not redacted: they would match inside ordinary words."""

LEAST_KEY_CHARS = 8
"""Shorter texts are no provider's key: redacting them would garble messages."""

_WORD_CHARS = 12
"""Shorter secrets are only redacted as whole words."""

_ADDRESS = re.compile(r"""(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]{0,30}://)(?P<rest>[^\s"'<>`\\]+)""")
_SECRET_PARAMETER = re.compile(r"(?i)([?&;][^=&;]*(?:pass|pwd|secret|token|key|sig|auth|cred)[^=&;]*=)[^&;#]*")


_FIELD_ENDING = (
    r"(?:api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|password|passwd|passphrase|secret|credentials?"
    r"|authorization|cookie|(?:access|auth|bearer|refresh|id|session|security)[_-]?token|(?<![\w.-])token)"
)
"""End of the name of a credential's field."""

_CREDENTIAL_FIELD = re.compile(rf".*{_FIELD_ENDING}", re.IGNORECASE)
_CREDENTIALS = (
    # in JSON, also JSON inside a JSON string, and in code: "api_key": "…", password = '…'
    re.compile(
        rf"""(?is)({_FIELD_ENDING}\\{{0,8}}["']?\s{{0,9}}[:=]\s{{0,9}}(?P<quote>\\{{0,8}}["']))"""
        r"""(?:(?<=\\)(?P=quote)|(?!(?P=quote)).){1,8000}"""
    ),
    # in YAML and in files of variables: a word with a digit
    re.compile(rf"""(?i)({_FIELD_ENDING}\s{{0,9}}[:=]\s{{0,9}})(?=[^\s"'\\&]{{0,200}}\d)[^\s"'\\&]{{6,}}"""),
    re.compile(
        r"""(?i)((?:proxy-)?authorization:\s{0,9}(?:(?:basic|bearer|digest|token)\s{1,9})?|(?:set-)?cookie:\s{0,9}"""
        r"""|(?:x-)?api-?key:\s{0,9})[^\s"'\\,]+"""
    ),
    re.compile(r"(?i)(\bbearer\s{1,9})[\w.~+/=-]{8,}"),
    re.compile(
        rf"""(?i)([?&;](?:[\w.-]{{0,40}}{_FIELD_ENDING}|key|sig|auth|pwd|pass|x-(?:amz|goog)-signature)=)"""
        r"""[^&;#\s"'<>\\]+"""
    ),
    re.compile(r"""(://[^/\s:@"'\\]{0,200}:)[^/\s@"'\\]{1,200}(?=@)"""),
    re.compile(r"()\b(?:[spr]k[-_]|AIza|gh[oprsu]_|xox[abprs]-|AKIA|ASIA)[\w-]{16,}"),
    re.compile(r"()\beyJ[\w-]{8,2000}\.[\w-]{8,8000}\.[\w-]+"),
    re.compile(r"()-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[\w+/=\s\\:,-]{0,8000}"),
)
"""Forms of credentials; the first group of each is kept."""


def without_key(text: str, key: str) -> str:
    """Return a provider's text without its API key `key` and without secrets in addresses."""
    return redacted(pattern_of([key]).sub("[API key]", text) if key else text)


def without_credentials(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return JSON without these secrets, credential fields, headers and known forms; idempotent."""
    long_enough = {secret for secret in secrets if len(secret) >= LEAST_SECRET_CHARS}
    known = pattern_of(long_enough) if long_enough else None

    def hide_text(text: str) -> str:
        if known is not None:
            text = known.sub(HIDDEN, text)
        for pattern in _CREDENTIALS:
            text = pattern.sub(rf"\g<1>{HIDDEN}", text)
        return text

    def hide(part: Any, name: str = "") -> Any:
        if isinstance(part, str):
            return HIDDEN if part and _CREDENTIAL_FIELD.fullmatch(name) else hide_text(part)
        if isinstance(part, Mapping):
            if name == "extra_headers":
                return dict.fromkeys(part, HIDDEN)
            return {key: hide(item, key) for key, item in part.items()}
        return [hide(item, name) for item in part] if isinstance(part, (list, tuple)) else part

    return hide(value)


def redacted(text: str) -> str:
    """Hide the credentials and query of every address in a text."""
    return _ADDRESS.sub(_hidden, text) if "://" in text else text


def without_password(url: str) -> str:
    """Return an address for its operator, without password and secret parameters."""
    scheme, separator, rest = url.partition("://")
    place, question, query = rest.partition("?")
    credentials, at, where = place.rpartition("@")
    if ":" in credentials:
        place = f"{credentials.partition(':')[0]}:{HIDDEN}{at}{where}"
    shown = _SECRET_PARAMETER.sub(rf"\1{HIDDEN}", question + query)
    return f"{scheme}{separator}{place}{shown}"


def secrets_of(url: str) -> set[str]:
    """Return the password and secret parameters of an address, as written and decoded."""
    place, question, query = url.partition("://")[2].partition("?")
    _, _, password = place.rpartition("@")[0].partition(":")
    parameters = [found[0].partition("=")[2] for found in _SECRET_PARAMETER.finditer(question + query)]
    return {form for secret in (password, *parameters) for form in (secret, unquote(secret)) if form}


def without(value: Any, secrets: Iterable[str]) -> Any:
    """Hide these secrets in the texts and keys of a JSON value."""
    pattern = pattern_of(secrets)

    def hide(part: Any) -> Any:
        if isinstance(part, str):
            return pattern.sub(HIDDEN, part)
        if isinstance(part, Mapping):
            return {hide(key): hide(item) for key, item in part.items()}
        return [hide(item) for item in part] if isinstance(part, (list, tuple)) else part

    return hide(value)


def pattern_of(secrets: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for these secrets, longest first; short ones as whole words only."""
    longest_first = sorted(secrets, key=len, reverse=True)
    return re.compile("|".join(map(_found_as, longest_first)))


def _found_as(secret: str) -> str:
    return re.escape(secret) if len(secret) >= _WORD_CHARS else rf"(?<![^\W_]){re.escape(secret)}(?![^\W_])"


class Redaction:
    """Hides known secrets, and what `redacted` hides."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Secrets shorter than `LEAST_SECRET_CHARS` are ignored."""
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        new = {secret for secret in secrets if len(secret) >= LEAST_SECRET_CHARS} - self._known
        if not new:
            return
        self._known |= new
        self._pattern = pattern_of(self._known)

    def __call__(self, text: str) -> str:
        return redacted(text if self._pattern is None else self._pattern.sub(HIDDEN, text))


def _hidden(found: re.Match[str]) -> str:
    scheme, rest = found["scheme"], found["rest"]
    cut = min((rest.find(mark) for mark in "?#" if mark in rest), default=len(rest))
    place, tail = rest[:cut], f"{rest[cut]}{HIDDEN}" if cut < len(rest) else ""
    host, slash, path = place.partition("/")
    if "@" in host:
        host = f"{HIDDEN}@{host.rpartition('@')[2]}"
    elif ":" in host and not host.rpartition(":")[2].isdecimal() and "@" in path and not host.endswith("]"):
        # Credentials with a slash in them, as people write them.
        return f"{scheme}{HIDDEN}@{place.rpartition('@')[2]}{tail}"
    return f"{scheme}{host}{slash}{path}{tail}"
