"""Sealed secrets: what opens them, and that nothing else does."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.platform.errors import InvalidRequest
from planq.shared.subjects.tenants.envelope import (
    ENVELOPE_ENTROPY_BYTES,
    SealedSecret,
    UnsealError,
    checked_secret,
    seal,
    unseal,
)
from planq.shared.subjects.tenants.master_keys import MasterKey, MasterKeyMissing, read_master_keys

OLD, NEW = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
MASTERS = read_master_keys(f"{NEW}, {OLD}")
ENTROPY = bytes(range(ENVELOPE_ENTROPY_BYTES))
NAME = "openai_api_key"


def sealed(text: str = "sk-secret", master: MasterKey = MASTERS[0]) -> SealedSecret:
    return seal(text, "acme", NAME, master, ENTROPY)


@given(st.text(), st.binary(min_size=ENVELOPE_ENTROPY_BYTES, max_size=ENVELOPE_ENTROPY_BYTES))
def test_what_was_sealed_opens_under_any_known_key(text: str, entropy: bytes) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        text = "-"
    for master in MASTERS:
        found = seal(text, "acme", NAME, master, entropy)
        assert found.key_id == master.id
        assert unseal(found, "acme", NAME, MASTERS) == text


def test_another_key_opens_nothing_and_its_id_is_told() -> None:
    with pytest.raises(MasterKeyMissing, match=f"{MASTERS[1].id}.*not in this process's PLANQ_SECRET_KEYS"):
        unseal(sealed(master=MASTERS[1]), "acme", NAME, MASTERS[:1])
    pretended = replace(sealed(master=MASTERS[1]), key_id=MASTERS[0].id)
    with pytest.raises(UnsealError, match="not what was sealed"):
        unseal(pretended, "acme", NAME, MASTERS)


@pytest.mark.parametrize(("tenant_id", "name"), [("other", NAME), ("acme", "google_api_key"), (f"acme\0{NAME}", "")])
def test_a_sealed_secret_opens_for_nobody_else_and_under_no_other_name(tenant_id: str, name: str) -> None:
    with pytest.raises(UnsealError, match="not what was sealed"):
        unseal(sealed(), tenant_id, name, MASTERS)


def test_any_changed_or_missing_byte_is_noticed() -> None:
    body = sealed().body
    for place in range(len(body)):
        changed = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        for tampered in (changed, body[:place]):
            with pytest.raises(UnsealError):
                unseal(SealedSecret(MASTERS[0].id, tampered), "acme", NAME, MASTERS)


def test_nothing_of_the_secret_or_of_a_key_is_shown() -> None:
    found = sealed("sk-secret")

    assert b"sk-secret" not in found.body
    assert seal("sk-secret", "acme", NAME, MASTERS[0], ENTROPY[::-1]).body != found.body
    assert "\\x02" not in repr(MASTERS)
    assert len({master.id for master in MASTERS}) == 2


@pytest.mark.parametrize("length", [0, ENVELOPE_ENTROPY_BYTES - 1, ENVELOPE_ENTROPY_BYTES + 1])
def test_nothing_is_sealed_with_fewer_random_bytes(length: int) -> None:
    with pytest.raises(ValueError, match="random bytes"):
        seal("x", "acme", NAME, MASTERS[0], bytes(length))


def test_master_keys_are_read_newest_first() -> None:
    assert [master.secret[0] for master in MASTERS] == [2, 1]
    assert read_master_keys("") == read_master_keys(" , ") == []


@pytest.mark.parametrize("text", ["short", f"{NEW},{OLD[:-4]}", f"{NEW},ü", "a" * 44 + "!", f"{NEW},{NEW}"])
def test_bad_master_keys_are_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"number \d is not|twice") as refused:
        read_master_keys(text)
    assert not any(part and part in str(refused.value) for part in text.split(","))


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("Pass word", "x", "secret 'Pass word': expected a name of small letters"),
        (NAME, " \n", "found an empty one"),
        (NAME, "sk-1234 5", "visible ASCII"),
        (NAME, "schlüssel", "visible ASCII"),
        (NAME, "sk-12345\x00", "visible ASCII"),
        (NAME, "x" * 16_385, "at most 16384 characters"),
        ("erp_api_key", "short", "at least 8 characters"),
        ("erp_api_key", "a text\x00 with NUL", "one with NUL"),
        ("webhook/1", "sk-12345678", "expected a name"),
    ],
)
def test_what_can_be_no_secret_is_refused_without_being_shown(name: str, text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as refused:
        checked_secret(name, text)
    assert text.strip() in ("", "x") or text not in refused.value.message


def test_what_tools_ask_for_may_be_any_text() -> None:
    certificate = "-----BEGIN KEY-----\nschlüssel und schloss\n-----END KEY-----"
    assert checked_secret("erp_certificate", f"{certificate}\n") == certificate


def test_white_space_around_a_secret_is_dropped() -> None:
    assert checked_secret(NAME, " sk-12345\n") == "sk-12345"
