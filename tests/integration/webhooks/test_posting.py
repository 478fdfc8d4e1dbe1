"""One attempt at a delivery, to a real receiver that behaves, and to those that do not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import httpx2
import pytest
from openai import OpenAI
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from planq.shared.kernel.new_ids import new_id
from planq.shared.subjects.webhooks.rules import LADDER, Delivery, DeliveryOutcome, signing_secret
from planq.worker.egress import Egress, Resolver, resolve_with_system
from planq.worker.webhooks.posting import Poster
from tests.support.receiver import CHUNK, ENDLESS_CHUNKS, SILENT, Answer, receiving

OLD, NEW, OTHER = (signing_secret(bytes([number]) * 32) for number in (1, 2, 3))
BODY = '{"type":"job.completed","timestamp":"2026-11-23T06:00:00.000000Z","data":{"id":"j","name":"Grüße"}}'


def delivery(url: str, tries: int = 1) -> Delivery:
    return Delivery(new_id(), "default", None, url, "default x", "job.completed", BODY, tries, tries)


async def keys(tenant_id: str, endpoint_id: UUID | None) -> Sequence[str]:
    return [NEW, OLD]


def post(
    one: Delivery, *, allowed: str = "", seconds: float = 20.0, resolve: Resolver = resolve_with_system
) -> DeliveryOutcome:
    hosts = frozenset({allowed} - {""})
    poster = Poster(keys, timedelta(seconds=seconds), hosts, lambda: 0.0, egress=Egress(resolve=resolve))
    return asyncio.run(poster.send(one))


def test_what_is_sent_is_verified_by_foreign_libraries_with_either_secret() -> None:
    with receiving() as receiver:
        one = delivery(receiver.url)
        outcome = post(one, allowed=receiver.host)
        assert (outcome.is_sent, outcome.response_status) == (True, 204)
        (seen,) = receiver.seen
    assert seen.body == BODY.encode()
    assert (seen.headers["webhook-id"], seen.headers["content-type"]) == (str(one.id), "application/json")
    for secret in (NEW, OLD):
        assert Webhook(secret).verify(seen.body, seen.headers) == json.loads(BODY)
        event = OpenAI(api_key="none").webhooks.unwrap(seen.body, seen.headers, secret=secret)
        assert event.type == "job.completed"  # type: ignore[comparison-overlap]
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify(seen.body, seen.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(seen.body + b" ", seen.headers)


@pytest.mark.parametrize(
    ("answer", "code", "again"),
    [
        (Answer(500), "receiver_failed", LADDER[0]),
        (Answer(429, {"Retry-After": "90"}), "rate_limited", timedelta(seconds=90)),
        (Answer(503, {"Retry-After": "999999"}), "receiver_failed", timedelta(days=1)),
        (Answer(410), "gone", None),
        (Answer(404), "receiver_refused", LADDER[0]),
    ],
)
def test_a_receiver_that_does_not_take_it_is_asked_again_as_it_wishes(
    answer: Answer, code: str, again: timedelta | None
) -> None:
    with receiving(answer) as receiver:
        outcome = post(delivery(receiver.url), allowed=receiver.host)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.again, outcome.response_status) == (code, again, answer.status)
    assert outcome.is_gone == (answer.status == 410)


def test_a_redirect_is_not_followed() -> None:
    with receiving() as inner, receiving(Answer(302, {"Location": inner.url})) as receiver:
        outcome = post(delivery(receiver.url), allowed=receiver.host)
        assert inner.seen == []
    assert outcome.error is not None
    assert (outcome.error.code, outcome.response_status) == ("receiver_refused", 302)
    assert "redirects are not followed" in outcome.error.message


def test_a_receiver_that_says_nothing_is_given_up_and_asked_again() -> None:
    with receiving(SILENT) as receiver:
        outcome = post(delivery(receiver.url, tries=2), allowed=receiver.host, seconds=0.3)
        assert len(receiver.seen) == 1
    assert outcome.error is not None
    assert (outcome.error.code, outcome.again) == ("timeout", LADDER[1])


def test_an_answer_without_end_is_not_read() -> None:
    with receiving(Answer(200, endless=True)) as receiver:
        assert post(delivery(receiver.url), allowed=receiver.host).is_sent
        assert receiver.chunks_sent * len(CHUNK) < 64 * 1024 * 1024 < ENDLESS_CHUNKS * len(CHUNK)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/",
        "http://localhost:1/",
        "http://2130706433:1/",
        "http://[::1]:1/",
        "http://[::ffff:127.0.0.1]:1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://0.0.0.0:1/",
        "http://10.0.0.1/",
    ],
)
def test_a_local_or_private_address_is_refused_for_good(url: str) -> None:
    outcome = post(delivery(url))
    assert outcome.error is not None
    assert (outcome.error.code, outcome.again, outcome.is_gone) == ("policy", None, False)
    assert "an operator can allow the host" in outcome.error.message.lower()


def test_a_name_that_leads_home_is_refused_and_is_resolved_but_once() -> None:
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    with receiving() as receiver:
        port = receiver.server_address[1]
        outcome = post(delivery(f"http://rebind.example:{port}/"), resolve=rebinding)
        assert receiver.seen == []
    assert outcome.error is not None
    assert (outcome.error.code, asked) == ("policy", ["rebind.example"])


@pytest.mark.parametrize(
    ("url", "code", "is_last"),
    [
        ("ftp://example.com/", "invalid_arguments", True),
        ("http://xn--zzzzzz99999/", "invalid_arguments", True),
        ("http://nowhere.invalid/", "transient", False),
    ],
)
def test_an_address_that_leads_nowhere_says_so(url: str, code: str, is_last: bool) -> None:
    outcome = post(delivery(url))
    assert outcome.error is not None
    assert (outcome.error.code, outcome.again is None) == (code, is_last)


def test_what_a_library_says_of_an_address_shows_no_credentials() -> None:
    async def refusing(host: str, port: int) -> Sequence[str]:
        raise httpx2.ConnectError("no way to http://me:hush-hush@proxy.example/in?token=hush-hush")

    outcome = post(delivery("https://example.com/hook"), resolve=refusing)

    assert outcome.error is not None
    assert "proxy.example/in" in outcome.error.message
    assert "hush" not in outcome.error.message


def test_a_connection_that_is_refused_is_tried_again() -> None:
    with receiving() as receiver:
        url, host = receiver.url, receiver.host
    outcome = post(delivery(url), allowed=host)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.again) == ("transient", LADDER[0])
