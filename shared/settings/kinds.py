"""Types of settings, and their validation."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, PlainValidator, SecretStr
from pydantic_settings import NoDecode

from planq.shared.agentic.models.names import check_model_name
from planq.shared.platform.errors import InvalidRequest, capped
from planq.shared.platform.redact import LEAST_KEY_CHARS
from planq.shared.platform.values.decoding import decode
from planq.shared.platform.values.describe import excerpt
from planq.shared.subjects.tenants.master_keys import read_master_keys

_MAX_DAYS = 36_500
_MOST_WEIGHT = 1_000


_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_LONGEST_PREFIX = 200


def is_prefix(text: str) -> bool:
    """Return whether a text is empty or a path without a final slash and escapes."""
    return len(text) <= _LONGEST_PREFIX and _PREFIX.fullmatch(text) is not None


def _prefix(text: str) -> str:
    if not is_prefix(text):
        raise ValueError(f"expected a path as `/planq`, without a slash at its end, found {excerpt(text)}")
    return text


RootPath = Annotated[str, AfterValidator(_prefix)]


def _networks(text: str) -> str:
    for part in comma_separated(text):
        try:
            ipaddress.ip_network(part)
        except ValueError as error:
            raise ValueError(
                f"expected addresses or networks (`10.0.0.0/8`), found {excerpt(part)}: {error}"
            ) from None
    return text


Networks = Annotated[str, AfterValidator(_networks)]
"""Addresses and networks, separated by commas."""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def _schema_name(name: str) -> str:
    if not _SCHEMA.fullmatch(name) or name.startswith("pg_"):
        raise ValueError(
            "expected the name of a schema of PostgreSQL: small letters, digits and `_`, at most 63, no digit first "
            f"and not `pg_…`, found {excerpt(name)}"
        )
    return name


SchemaName = Annotated[str, AfterValidator(_schema_name)]


def comma_separated(text: str) -> list[str]:
    """Return the non-empty parts of a comma-separated setting."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _none_is_for_ever(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in ("", "none") else value


def _retained(days: float | None) -> float | None:
    if days is not None and not 0 < days <= _MAX_DAYS:
        raise ValueError(
            f"expected more than 0 and at most {_MAX_DAYS:,} days, found {days:g}; to remove jobs soon after their "
            "end, set a very small number (0.001 is 86 seconds); to keep them for ever, `none`"
        )
    return days


Days = Annotated[float | None, BeforeValidator(_none_is_for_ever), AfterValidator(_retained)]
"""A time in days; None is for ever."""

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def read_weights(raw: Any) -> dict[str, float]:
    """Return tenants' weights from JSON `{"acme": 3}`; raises `ValueError`."""
    try:
        found = decode(raw, is_unique=True) if isinstance(raw, str) else raw
    except (ValueError, RecursionError) as error:
        raise ValueError(f'expected a JSON object {{"tenant": weight}}, found what is no JSON: {error}') from None
    if not isinstance(found, dict):
        raise ValueError(f'expected a JSON object {{"tenant": weight}}, found {excerpt(found)}')
    for tenant, weight in found.items():
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight <= _MOST_WEIGHT:
            message = f"expected a number more than 0 and at most {_MOST_WEIGHT}"
            raise ValueError(f"{capped(tenant, 80)}: {message}, found {excerpt(weight)}")
    return {tenant: float(weight) for tenant, weight in found.items()}


Weights = Annotated[dict[str, float], NoDecode, PlainValidator(read_weights)]
"""Weights of tenants by their ids."""


def known_log_level(value: str) -> str:
    """Return a log level in capitals; raises `ValueError`."""
    if value.upper() not in _LOG_LEVELS:
        raise ValueError(f"expected one of {', '.join(_LOG_LEVELS)}")
    return value.upper()


def model_name(value: str) -> str:
    """Return a model's name, also of a cassette; raises `ValueError`."""
    try:
        check_model_name(value, allow_cassette=True)
    except InvalidRequest as error:
        raise ValueError(error.message) from None
    return value


def _web_address(value: str | None) -> str | None:
    if not value:
        return value
    try:
        parts = urlsplit(value)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise ValueError("expected an address that begins with http:// or https://")
    return value


def _telling_key(value: SecretStr | None) -> SecretStr | None:
    found = 0 if value is None else len(value.get_secret_value())
    if 0 < found < LEAST_KEY_CHARS:
        raise ValueError(
            f"expected at least {LEAST_KEY_CHARS} characters, found {found}; leave it unset where no key is needed"
        )
    return value


ModelKey = Annotated[SecretStr | None, AfterValidator(_telling_key)]
"""A provider's key, long enough to be redacted."""


def _named(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("expected the path of a file; without a file, leave the variable unset")
    return value


def ascii_keys(value: str) -> str:
    """Return keys for a header; raises `ValueError`."""
    keys = comma_separated(value)
    if value and not keys:
        raise ValueError("expected keys, separated by commas; leave the variable unset where there are none")
    if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise ValueError("expected keys of visible ASCII characters: no others go into a header")
    return value


def readable_master_keys(value: SecretStr) -> SecretStr:
    """Return valid master keys; raises `ValueError`."""
    read_master_keys(value.get_secret_value())
    return value


COMMANDS = (
    *("shutdown", "pool_grow", "pool_shrink", "pool_restart", "autoscale"),
    *("add_consumer", "cancel_consumer", "rate_limit", "time_limit"),
    *("revoke", "revoke_by_stamped_headers", "terminate", "election", "hello"),
    *("memdump", "memsample", "objgraph"),
)
"""Celery's commands that change a worker."""


def known_commands(value: str) -> str:
    """Return names of Celery's commands; raises `ValueError`."""
    if unknown := sorted(set(comma_separated(value)) - set(COMMANDS)):
        raise ValueError(f"expected some of {', '.join(COMMANDS)}, found {', '.join(unknown)[:80]}")
    return value


def hosts_alone(value: str) -> str:
    """Return hosts, maybe with ports; raises `ValueError`."""
    if any(set(host) & set("/@?# ") for host in comma_separated(value)):
        raise ValueError("expected names or addresses of hosts alone, separated by commas")
    return value


WebAddress = Annotated[str | None, AfterValidator(_web_address)]
FilePath = Annotated[Path | None, BeforeValidator(_named)]
