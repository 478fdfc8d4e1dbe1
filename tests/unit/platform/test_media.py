"""Media types of artifacts of bytes, and the names of the files that they make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.platform.values.media import (
    SHOWN_MEDIA_TYPES,
    file_name,
    is_media_type,
    media_type_of,
    served_media_type,
)


@pytest.mark.parametrize(
    "text", ["image/png", "text/csv; charset=utf-8", "application/vnd.ms-excel", "image/svg+xml"]
)
def test_what_a_media_type_is(text: str) -> None:
    assert is_media_type(text)
    assert media_type_of(text) == text


@pytest.mark.parametrize(
    "text", ["", "png", "a/b/c", "text/html\r\nX: y", "text/html; a=b", "té/xt", "a/" + "b" * 101]
)
def test_what_none_is(text: str) -> None:
    assert not is_media_type(text)


def test_what_a_server_says_is_read_as_far_as_it_can_be() -> None:
    assert media_type_of("text/html;profile=mcp-app") == "text/html"
    for said in (None, 7, "nonsense", "a b/c"):
        assert media_type_of(said) == "application/octet-stream"


def test_nothing_is_given_out_that_a_page_could_run() -> None:
    assert served_media_type("Text/JavaScript; charset=utf-8") == "application/octet-stream"
    assert served_media_type("application/ecmascript") == "application/octet-stream"
    assert served_media_type("image/png") == "image/png"
    assert not {"image/svg+xml", "text/html", "application/pdf"} & SHOWN_MEDIA_TYPES


@pytest.mark.parametrize(
    ("artifact_id", "media_type", "expected"),
    [
        ("charts/sales", "image/png", "sales.png"),
        ("charts/sales.png", "image/png", "sales.png"),
        ("a/b/", "application/pdf", "b.pdf"),
        ("../../etc/passwd", "text/plain; charset=utf-8", "passwd.txt"),
        ('x"; y\r\n', "application/octet-stream", "x__ y__.bin"),
        ("..", "x/unknown", "artifact"),
        ("Bericht für März", "text/csv", "Bericht für März.csv"),
    ],
)
def test_a_file_is_called_by_the_end_of_its_id(artifact_id: str, media_type: str, expected: str) -> None:
    assert file_name(artifact_id, media_type) == expected


@given(st.text(min_size=1, max_size=255))
def test_no_name_leads_out_of_a_folder(artifact_id: str) -> None:
    name = file_name(artifact_id, "image/png")

    assert name.strip(".")
    assert not {"/", "\\", "\x00", '"', "\r", "\n"} & set(name)


@pytest.mark.parametrize(
    "media_type",
    [
        *(f"{kind}/{name}" for kind in ("application", "text") for name in ("javascript", "ecmascript")),
        *(f"{kind}/x-{name}" for kind in ("application", "text") for name in ("javascript", "ecmascript")),
        *(f"text/javascript1.{number}" for number in range(6)),
        *("text/jscript", "text/livescript", "Text/JScript; charset=utf-8"),
        *(
            "text/html",
            "application/xhtml+xml",
            "image/svg+xml",
            "text/xml",
            "application/xml",
            "application/atom+xml",
        ),
        *("multipart/related", "message/rfc822", "application/x-mimearchive"),
    ],
)
def test_nothing_that_a_browser_runs_is_given_out_under_its_type(media_type: str) -> None:
    assert served_media_type(media_type) == "application/octet-stream"
