"""HTML as text: what a reader sees of it, in the encoding that it means."""

from __future__ import annotations

import pytest

from planq.shared.platform.values.charsets import decoded_page
from planq.worker.subprocesses.html_text import flattened, read_page

OPENERS = ["<!--", "<![CDATA[", "<!DOCTYPE ", "<?", "<?xml", "<a ", '<a b="', "</", "<a", "<meta", "<!", "<![cdata[>"]


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("end", ["", ">", "-->", "\">]]>'>"])
def test_what_stands_before_markup_that_never_closes_is_read(opener: str, end: str) -> None:
    _, text = read_page(f"<title>A page</title><p>seen</p>{opener * 40_000}{end}".encode(), None)

    assert text.split()[0] == "seen"


def test_only_what_is_never_closed_is_left_out() -> None:
    _, text = read_page(b"<p>one <!-- a > b --> two < three</p><p>four</p>five <a href='x", None)

    assert text.split() == ["one", "two", "<", "three", "four", "five"]


def test_what_no_reader_sees_is_left_out() -> None:
    hidden = "".join(f"<{name}>no</{name}>" for name in ("script", "style", "noscript", "template", "svg", "iframe"))

    page = f"<title> A\n page </title><body>{hidden}<p>a <b>b</b>\x00<br></p>"

    assert read_page(page.encode(), None) == ["A page", "a\nb"]


def test_the_text_of_a_page_that_nests_too_deep_is_read_and_its_depth_is_not() -> None:
    """One of 100 kB of nested elements took 1.2 s, one of 1 MB minutes."""
    deep = "".join(f"<div>{level}<script>no</script>" for level in range(2000))
    page = f"<title>T</title>{deep}{'</div>' * 2000}<div>after</div><svg>no</svg>"

    assert read_page(page.encode(), None) == ["T", "\n".join([*map(str, range(2000)), "after"])]
    assert flattened(page).count("<div>") == 512 + 1
    assert flattened(page).count("</div>") == 512 + 1
    assert flattened("<SPAN a=b>" * 600 + "</p>" * 600).count("<") == 2 * 512


@pytest.mark.parametrize(
    ("body", "charset", "expected"),
    [
        ("é".encode(), None, "é"),
        ("é€".encode("cp1252"), None, "é€"),
        ("é".encode("latin-1"), "iso-8859-1", "é"),
        ("\u20ac".encode("cp1252"), "latin1", "€"),
        ("é".encode("utf-16"), "latin1", "é"),
        ("\ufeffé".encode(), "latin1", "é"),
        (b'<meta charset="koi8-r">' + "да".encode("koi8-r"), None, "да"),
        (b'<meta http-equiv=x content="text/html; charset = koi8-r">' + "да".encode("koi8-r"), None, "да"),
        ("é".encode(), "no-such", "é"),
        ("é".encode(), "hex", "é"),
        ("é".encode(), "utf-8\x00", "é"),
        ("éé".encode()[:-1], None, "é\ufffd"),
    ],
)
def test_a_page_is_read_in_its_encoding(body: bytes, charset: str | None, expected: str) -> None:
    assert decoded_page(body, charset).endswith(expected)
