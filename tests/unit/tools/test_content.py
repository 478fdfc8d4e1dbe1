"""Bodies made by somebody who means harm: read as what they are, or refused, never believed."""

from __future__ import annotations

import pytest

from planq.worker.tools.builtin.content import FetchedDocument, read_document


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1e999", "9" * 5_000])
def test_a_number_that_json_cannot_say_again_leaves_the_text(number: str) -> None:
    body = f'{{"a": {number}}}'

    assert read_document(body.encode(), "application/json", None) == FetchedDocument(body)


@pytest.mark.parametrize("charset", ["no-such", "undefined", "idna", "hex", "../../x"])
def test_a_charset_that_is_none_is_read_as_utf8(charset: str) -> None:
    assert read_document("é".encode(), "text/plain", charset).text == "é"
