"""Bodies made by somebody who means harm: read in little time, or refused, never believed."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from tests.support.garbage import garbage
from worker.tools.builtin.content import FetchedDocument, read_document, read_limited

OPENERS = [
    "<!--",
    "<![CDATA[",
    "<!DOCTYPE ",
    "<?",
    "<a ",
    "<a b=",
    '<a b="',
    "<a b='",
    "</",
    "</a ",
    "<a",
    "<!",
    "<!-",
    "<![",
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("end", ["", ">", "-->", "\">]]>'>"])
def test_markup_that_never_closes_costs_little_time(opener: str, end: str) -> None:
    body = f"<title>A page</title><p>seen</p>{opener * 40_000}{end}"

    document = read_document(body.encode(), "text/html", None)

    assert "seen" in document.text


def test_only_what_is_never_closed_is_left_out() -> None:
    body = b"<p>one <!-- a > b --> two < three</p><p>four</p>five <a href='x"

    assert read_document(body, "text/html", None).text.split() == ["one", "two", "<", "three", "four", "five"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1e999", "9" * 5_000])
def test_a_number_that_json_cannot_say_again_leaves_the_text(number: str) -> None:
    body = f'{{"a": {number}}}'

    assert read_document(body.encode(), "application/json", None) == FetchedDocument("", body)


@pytest.mark.parametrize("charset", ["no-such", "undefined", "idna", "hex", "../../x"])
def test_a_charset_that_is_none_is_read_as_utf8(charset: str) -> None:
    assert read_document("é".encode(), "text/plain", charset).text == "é"


def test_a_packed_body_that_stops_in_the_middle_was_cut() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield gzip.compress(b"hello " * 1_000)[:30]

    _, truncated = asyncio.run(read_limited(chunks(), "gzip", 10_000))

    assert truncated


def test_a_page_that_was_read_leaves_nothing_to_the_garbage_collector() -> None:
    page = b"<!doctype html><html><head><title>T</title><style>p {}</style></head><body><p>a <b>b</b><br></p></body>"
    read_document(page, "text/html", None)
    with garbage() as found:
        assert read_document(page, "text/html", None).text == "a\nb"
    assert not found
