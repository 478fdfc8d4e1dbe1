"""Which addresses and events an endpoint may name, and what its secret and its signature are."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from planq.shared.platform.errors import InvalidRequest
from planq.shared.subjects.webhooks.rules import EVENTS, checked_events, checked_url, signed_headers, signing_secret

NOW = datetime(2026, 11, 23, 6, 0, 0, 900_000, tzinfo=UTC)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hook?token=x",
        "http://example.com:8080/",
        "https://[2606:2800:220:1::1]/",
        "https://8.8.8.8/",
    ],
)
def test_a_public_address_may_be_named(url: str) -> None:
    assert checked_url(url, "url") == url


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "expected https://host/path"),
        ("ftp://example.com/", "expected https://host/path"),
        ("https:///path", "expected https://host/path"),
        ("https://example.com:99999/", "expected https://host/path"),
        ("https://[::1/", "expected https://host/path"),
        ("https://user:secret@example.com/", "without a user name or password"),
        ("https://example.com/#part", "without a fragment"),
        ("https://example.com/a b", "without spaces"),
        ("https://example.com/\x00", "without spaces or control characters"),
        ("https://example.com/\ud800", "without spaces or control characters"),
        ("https://example.com/" + "x" * 2_000, "at most 2000 characters"),
        ("http://localhost/", "a loopback address"),
        ("http://api.localhost:8000/", "a loopback address"),
        ("http://127.0.0.1/", "a loopback address"),
        ("http://[::1]/", "a loopback address"),
        ("http://169.254.169.254/latest/meta-data", "a link-local address"),
        ("http://10.1.2.3/", "a private address"),
    ],
)
def test_another_one_is_refused_and_told_why(url: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=f"callback_url: .*{told}") as refused:
        checked_url(url, "callback_url")
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("allowed", ["127.0.0.1", "127.0.0.1:8123"])
def test_an_operator_may_allow_a_local_host(allowed: str) -> None:
    assert checked_url("http://127.0.0.1:8123/", "url", {allowed})
    with pytest.raises(InvalidRequest):
        checked_url("http://127.0.0.2:8123/", "url", {allowed})


@given(st.text(max_size=60))
def test_any_text_is_taken_or_refused(text: str) -> None:
    for url in (text, f"https://{text}"):
        with contextlib.suppress(InvalidRequest):
            assert checked_url(url, "url") == url


def test_events_are_known_and_named_once() -> None:
    assert checked_events(["job.*", "batch.failed", "job.*"]) == ["job.*", "batch.failed"]
    assert checked_events(EVENTS) == list(EVENTS)
    for wrong in ([], ["job.done"], ["*"], ["job.completed", "x" * 1_000]):
        with pytest.raises(InvalidRequest, match=r"events: expected one or more of job.completed"):
            checked_events(wrong)


def test_each_secret_signs_and_only_times_in_utc_are_taken() -> None:
    secrets = [signing_secret(bytes([number]) * 32) for number in (1, 2)]
    headers = signed_headers("id", NOW, "{}", secrets)
    assert headers["webhook-timestamp"] == str(int(NOW.timestamp()))
    assert headers["webhook-signature"].split(" ") == [Webhook(one).sign("id", NOW, "{}") for one in secrets]
    with pytest.raises(ValueError, match="a time in UTC"):
        signed_headers("id", NOW.astimezone(timezone(timedelta(hours=1))), "{}", secrets)
    with pytest.raises(ValueError, match="32 random bytes"):
        signing_secret(b"short")
