"""Splitting documents: at headings, then by size, with every word kept and none invented."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.deploy.cli.passages import LONGEST, Form, split_document

MARKDOWN = """---
author: nobody
---
# The *handbook*

Before all sections.

## First part

```
# no heading in code
```

- a list
  # nor in a list

### Inside `it`

deep

Setext
------

last
"""


def headed(text: str, form: Form) -> list[tuple[str, str]]:
    return [(piece.heading, piece.body) for piece in split_document(text, form)[1]]


def test_markdown_is_split_at_its_headings_and_named_by_the_first() -> None:
    title, _ = split_document(MARKDOWN, Form.MARKDOWN)

    assert title == "The handbook"
    assert headed(MARKDOWN, Form.MARKDOWN) == [
        ("", "Before all sections."),
        ("First part", "```\n# no heading in code\n```\n\n- a list\n  # nor in a list"),
        ("First part › Inside it", "deep"),
        ("Setext", "last"),
    ]


def test_a_document_of_several_first_headings_keeps_the_later_ones() -> None:
    assert headed("# A\n\none\n\n# B\n\ntwo\n", Form.MARKDOWN) == [("", "one"), ("B", "two")]


def test_html_gives_its_visible_text_under_its_headings() -> None:
    page = """<html><head><title>The  page</title><style>p {}</style></head><body><script>no()</script><!-- no -->
    <p>in<b>line</b> words<br>apart</p><h2>Part <i>one</i></h2><table><tr><td>a</td><td>b</td></tr></table>
    <h3>Deeper</h3><p>&lt;tag&gt;</p></body></html>"""

    assert split_document(page, Form.HTML)[0] == "The page"
    assert headed(page, Form.HTML) == [
        ("", "inline words apart"),
        ("", "a b"),
        ("Deeper", "<tag>"),
    ]


def test_a_page_without_a_title_is_named_by_its_first_heading() -> None:
    title, pieces = split_document("<h1>Name</h1><h2>Part</h2><p>x</p>", Form.HTML)

    assert (title, pieces[0].heading) == ("Name", "Part")


def test_plain_text_has_no_title_and_no_headings() -> None:
    assert split_document("# not\n\nmarkdown", Form.TEXT)[0] == ""
    assert headed("# not\n\nmarkdown", Form.TEXT) == [("", "# not\n\nmarkdown")]


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("text", ["", "   \n\n", "\ufeff".strip("\ufeff"), "\x00"])
def test_a_document_without_text_has_no_pieces(form: Form, text: str) -> None:
    assert split_document(text, form)[1] == []


def test_paragraphs_that_fit_stay_together_and_are_not_repeated() -> None:
    paragraphs = [f"Paragraph {number} " + "word " * 60 for number in range(10)]

    bodies = [body for _, body in headed("\n\n".join(paragraphs), Form.TEXT)]

    assert all(len(body) <= LONGEST for body in bodies)
    assert len(bodies) < len(paragraphs)
    for number in range(10):
        assert sum(f"Paragraph {number} " in body for body in bodies) == 1


def test_a_long_paragraph_is_cut_at_the_end_of_a_sentence() -> None:
    sentence = "This sentence has exactly some words in it. "

    bodies = [body for _, body in headed(sentence * 100, Form.TEXT)]

    assert len(bodies) > 2
    assert all(body.endswith("it.") for body in bodies)


@given(st.text(st.sampled_from("ab .\n#`-"), max_size=6_000), st.sampled_from([Form.TEXT, Form.MARKDOWN]))
def test_no_piece_is_too_long_and_plain_text_loses_nothing_but_space(text: str, form: Form) -> None:
    bodies = [body for _, body in headed(text, form)]

    assert all(len(body.strip()) > 0 and len(body) <= LONGEST for body in bodies)
    if form is Form.TEXT:
        assert "".join("".join(bodies).split()) == "".join(text.split())


def test_deep_and_broken_markup_is_read_in_time() -> None:
    assert headed("<div>" * 5_000 + "x", Form.HTML) == [("", "x")]
    assert headed("> " * 5_000 + "x", Form.MARKDOWN) != []
