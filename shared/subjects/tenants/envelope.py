"""Secrets at rest: each is sealed under an own data key, which a master key wraps.

    sealed = version | nonce | data key wrapped by the master key | nonce | text sealed by the data key

Both are AES-256-GCM. Tenant and name are associated data, so a moved secret does not open. The master key's id is
stored next to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from planq.shared.agentic.models.names import Provider, key_name
from planq.shared.platform.errors import InvalidRequest
from planq.shared.platform.redact import LEAST_KEY_CHARS
from planq.shared.subjects.tenants.master_keys import KEY_BYTES, MasterKey, MasterKeyMissing

NONCE_BYTES = 12
ENVELOPE_ENTROPY_BYTES = KEY_BYTES + 2 * NONCE_BYTES
"""Random bytes per secret: a data key and two nonces, used once."""

MAX_SECRET_CHARS = 16_384

_PROVIDERS = "|".join(key_name(provider.value).removesuffix("_api_key") for provider in Provider)
_PROVIDER_KEY = re.compile(rf"(?:{_PROVIDERS})(?:_[a-z0-9_]+)?_api_key")
"""Names of keys for providers and their servers; others are for tools (`ToolContext.secret`)."""

SECRET_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")

_VERSION = b"\x01"
_TAG_BYTES = 16
_WRAPPED_BYTES = KEY_BYTES + _TAG_BYTES


class UnsealError(ValueError):
    """No known master key opens it, or it was sealed for another tenant or name."""


@dataclass(frozen=True, slots=True)
class SealedSecret:
    """A stored secret, and the id of its master key."""

    key_id: str
    body: bytes


def seal(text: str, tenant_id: str, name: str, master: MasterKey, entropy: bytes) -> SealedSecret:
    """Seal a tenant's secret with fresh random bytes (`ENVELOPE_ENTROPY_BYTES`)."""
    if len(entropy) != ENVELOPE_ENTROPY_BYTES:
        raise ValueError(f"expected {ENVELOPE_ENTROPY_BYTES} random bytes, found {len(entropy)}")
    data_key, nonces = entropy[:KEY_BYTES], entropy[KEY_BYTES:]
    wrap_nonce, text_nonce = nonces[:NONCE_BYTES], nonces[NONCE_BYTES:]
    whose = _whose(tenant_id, name)
    wrapped = AESGCM(master.secret).encrypt(wrap_nonce, data_key, whose + master.id.encode())
    body = AESGCM(data_key).encrypt(text_nonce, text.encode(), whose)
    return SealedSecret(master.id, _VERSION + wrap_nonce + wrapped + text_nonce + body)


def unseal(sealed: SealedSecret, tenant_id: str, name: str, masters: Sequence[MasterKey]) -> str:
    """Return a tenant's secret; raises `UnsealError` and `MasterKeyMissing`."""
    master = next((key for key in masters if key.id == sealed.key_id), None)
    if master is None:
        raise MasterKeyMissing(
            f"the secret {name} of the tenant {tenant_id!r} cannot be opened: it was sealed under the key "
            f"{sealed.key_id!r}, which is not in this process's PLANQ_SECRET_KEYS"
        )
    if sealed.body[:1] != _VERSION:
        raise UnsealError("it was sealed by another release")
    wrap_nonce, rest = sealed.body[1 : 1 + NONCE_BYTES], sealed.body[1 + NONCE_BYTES :]
    wrapped, rest = rest[:_WRAPPED_BYTES], rest[_WRAPPED_BYTES:]
    text_nonce, body = rest[:NONCE_BYTES], rest[NONCE_BYTES:]
    whose = _whose(tenant_id, name)
    try:
        data_key = AESGCM(master.secret).decrypt(wrap_nonce, wrapped, whose + master.id.encode())
        return AESGCM(data_key).decrypt(text_nonce, body, whose).decode()
    except (InvalidTag, ValueError):
        raise UnsealError("it is not what was sealed for this tenant under this name") from None


def checked_secret(name: str, text: str) -> str:
    """Return a stripped secret that may be stored; raises `InvalidRequest` without showing it."""
    if not SECRET_NAME.fullmatch(name):
        raise InvalidRequest(
            f"secret {name[:80]!r}: expected a name of small letters, digits and _, such as erp_api_key, or a "
            "provider's, such as openai_api_key"
        )
    text = text.strip()
    if not text:
        raise InvalidRequest(f"secret {name}: expected a text, found an empty one")
    if len(text) < LEAST_KEY_CHARS:
        raise InvalidRequest(f"secret {name}: expected at least {LEAST_KEY_CHARS} characters, found {len(text)}")
    if len(text) > MAX_SECRET_CHARS:
        raise InvalidRequest(f"secret {name}: expected at most {MAX_SECRET_CHARS} characters, found {len(text)}")
    if _PROVIDER_KEY.fullmatch(name) and (not (text.isascii() and text.isprintable()) or " " in text):
        raise InvalidRequest(f"secret {name}: expected visible ASCII characters alone: no others go into a header")
    if "\0" in text:
        raise InvalidRequest(f"secret {name}: expected a text, found one with NUL")
    return text


def _whose(tenant_id: str, name: str) -> bytes:
    """Return the associated data; NUL, in no id or name, separates."""
    return f"planq.secret.v1\0{tenant_id}\0{name}\0".encode()
