"""API keys: their form, their checksum, and what they are known by."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.platform.errors import InvalidRequest
from planq.shared.subjects.tenants.config import read_tenant_id
from planq.shared.subjects.tenants.keys import KeyScope, is_key, key_digest, new_key, prefix_of, read_scopes

KEY = new_key(bytes(range(32)))


def test_a_key_has_the_form_that_is_documented_for_ever() -> None:
    assert KEY == "planq_003aUlTJC7tjlCTQj2uNU3MFagCXG9LRKRcwGkBIDlf0HdTyk"
    assert re.fullmatch("planq_[0-9A-Za-z]{49}", KEY)
    assert prefix_of(KEY) == "planq_003aUlTJ"
    assert key_digest("planq").hex() == "c58071d52299e1ff7064e6692f70ee172e67fd1a12f4b4fd6e9d2acb9d8194eb"


@given(st.binary(min_size=32, max_size=32))
def test_every_key_is_one_and_different_bits_give_different_keys(entropy: bytes) -> None:
    key = new_key(entropy)
    flipped = bytes([entropy[0] ^ 1]) + entropy[1:]

    assert is_key(key)
    assert len(key) == 55
    assert new_key(flipped) != key


@given(st.integers(min_value=6, max_value=len(KEY) - 1), st.sampled_from("09azAZ_é"))
def test_one_wrong_character_is_noticed(place: int, character: str) -> None:
    assert is_key(KEY[:place] + character + KEY[place + 1 :]) is (KEY[place] == character)


@pytest.mark.parametrize(
    "text", ["", "planq_", KEY[:-1], KEY + "0", KEY.lower(), f" {KEY}", KEY + "\n", "sk-1", "ü" * 55]
)
def test_what_is_no_key_is_none(text: str) -> None:
    assert not is_key(text)


def test_anything_has_a_digest() -> None:
    assert len({key_digest(text) for text in ("", "a", "\udc80", "schlüssel")}) == 4


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_of_fewer_bits_is_not_made(length: int) -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        new_key(bytes(length))


def test_scopes_are_read_by_their_names() -> None:
    assert read_scopes(["jobs", "admin", "jobs"]) == {KeyScope.JOBS, KeyScope.ADMIN}
    known = "'root'; known scopes are jobs, messages, approve, admin"
    for wrong, told in (([], "found none"), (["jobs", "root"], known)):
        with pytest.raises(InvalidRequest, match=told):
            read_scopes(wrong)


@pytest.mark.parametrize("text", ["a", "0", "acme-2", "a" * 63, "0188D0C0-0000-7000-8000-00000000000F"])
def test_a_tenant_is_named_by_a_slug_or_a_uuid(text: str) -> None:
    assert read_tenant_id(text) == text.lower()


@pytest.mark.parametrize("text", ["", "-a", "A", "a b", "a_b", "a" * 64, "ä", "a\n", "../a"])
def test_other_names_of_tenants_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="lower-case letters, digits and hyphens"):
        read_tenant_id(text)
