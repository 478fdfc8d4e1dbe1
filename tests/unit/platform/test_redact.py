"""What is hidden of addresses and secrets in text that leaves the process."""

from __future__ import annotations

import json

import pytest

from planq.shared.platform.redact import Redaction, redacted, secrets_of, without_credentials, without_password


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "HTTP Request: POST https://a.example/mcp?api_key=hush 200",
            "HTTP Request: POST https://a.example/mcp?… 200",
        ),
        ("for url 'http://me:hush@a.example:80/x#y'", "for url 'http://…@a.example:80/x#…'"),
        ('"url": "redis://:hush@127.0.0.1:6379/0"', '"url": "redis://…@127.0.0.1:6379/0"'),
        ("amqp://me:hu/sh@host//", "amqp://…@host//"),
        (
            "https://host:8000/@somebody and https://[::1]:80/a@b",
            "https://host:8000/@somebody and https://[::1]:80/a@b",
        ),
        ("no address: a@b ?c=d", "no address: a@b ?c=d"),
    ],
)
def test_credentials_and_queries_of_addresses_are_hidden(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hush@h/x?host=%2Frun&port=1", "postgresql://me:…@h/x?host=%2Frun&port=1"),
        (
            "postgresql://h/x?user=me&password=hush&sslmode=require",
            "postgresql://h/x?user=me&password=…&sslmode=require",
        ),
        ("redis://h/0?ssl_keyfile=hush", "redis://h/0?ssl_keyfile=…"),
        ("redis+socket:///run/v.sock?virtual_host=0", "redis+socket:///run/v.sock?virtual_host=0"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_known_secrets_are_hidden_wherever_they_stand_and_short_ones_are_not() -> None:
    hide = Redaction(secrets_of("postgresql://me:hu%40sh-1@h/x?password=hush-2") | {"abc"})
    hide.add(["longer-hush-3", "longer-hush-3-still"])

    assert hide("hu%40sh-1 hu@sh-1 hush-2 abc xlonger-hush-3-stillx") == "… … … abc x…x"


def test_a_short_secret_is_hidden_as_a_word_and_not_inside_one() -> None:
    hide = Redaction({"maximum-1", "context"})

    shown = hide("the maximum context of contexts: key=context, Bearer context")
    assert shown == "the maximum … of contexts: key=…, Bearer …"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ('{"api_key": "abcdef", "q": "x"}', '{"api_key": "…", "q": "x"}'),
        (json.dumps({"a": json.dumps({"password": 'h"x', "n": 1})}), r'{"a": "{\"password\": \"…\", \"n\": 1}"}'),
        ("X-Api-Key: abc\nAccept: text/html", "X-Api-Key: …\nAccept: text/html"),
        ("Authorization: Basic dXNlcjpwYXNz, then", "Authorization: Basic …, then"),
        ("https://me:hush@h/p?q=dogs&token=K1&page_token=3", "https://me:…@h/p?q=dogs&token=…&page_token=3"),
        ("OPENAI_API_KEY=abc-def-9 password: hunter2", "OPENAI_API_KEY=… password: …"),
        ("the secret: nobody knows it; max_tokens: 4096", "the secret: nobody knows it; max_tokens: 4096"),
        (f"use sk-{20 * 'a'} now", "use … now"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----", "…"),
        ({"token": "a", "key": "color", "max_tokens": 5}, {"token": "…", "key": "color", "max_tokens": 5}),
        ({"properties": {"api_key": {"type": "string"}}}, {"properties": {"api_key": {"type": "string"}}}),
        ({"settings": {"extra_headers": {"X-A": "b"}}}, {"settings": {"extra_headers": {"X-A": "…"}}}),
        (["own-hush", {"client_secret": ["z"]}], ["…", {"client_secret": ["…"]}]),
    ],
)
def test_credentials_in_a_json_value_are_hidden_and_the_rest_is_kept(value: object, shown: object) -> None:
    hidden = without_credentials(value, ["own-hush", "x"])

    assert hidden == shown
    assert without_credentials(hidden) == hidden
