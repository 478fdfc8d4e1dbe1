"""Finding documents: what is loaded under which source, what is skipped and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planq.api.cli.reading import MAX_FILE_BYTES, UnreadableFile, find_files, read_file
from planq.deploy.cli.passages import Form


def found(*paths: Path, prefix: str = "") -> dict[str, str | None]:
    return {one.source: one.reason for one in find_files(paths, prefix)}


def write(path: Path, content: bytes = b"text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_sources_are_paths_below_what_was_named_and_never_absolute(tmp_path: Path) -> None:
    write(tmp_path / "book" / "b.md")
    write(tmp_path / "book" / "deep" / "a.md")

    assert list(found(tmp_path / "book")) == ["b.md", "deep/a.md"]
    assert list(found(tmp_path / "book" / "deep" / "a.md")) == ["a.md"]
    assert list(found(tmp_path / "book", prefix="v2/")) == ["v2/b.md", "v2/deep/a.md"]


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / ".git" / "config")
    write(tmp_path / ".env")
    write(tmp_path / "a.md")

    assert list(found(tmp_path)) == ["a.md"]


def test_a_loop_of_links_ends_and_each_file_comes_once(tmp_path: Path) -> None:
    write(tmp_path / "sub" / "a.md")
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    (tmp_path / "again.md").symlink_to(tmp_path / "sub" / "a.md")
    (tmp_path / "itself").symlink_to(tmp_path / "itself")

    assert found(tmp_path) == {"again.md": None, "itself": None}
    with pytest.raises(UnreadableFile, match="cannot be read"):
        read_file(tmp_path / "itself")


def test_links_that_lead_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "outside" / "secret.md")
    book = tmp_path / "book"
    write(book / "a.md")
    (book / "file.md").symlink_to(tmp_path / "outside" / "secret.md")
    (book / "folder").symlink_to(tmp_path / "outside")

    reasons = found(book)

    assert reasons.pop("a.md") is None
    assert set(reasons) == {"file.md", "folder"}
    assert all("leads out of the folder" in str(reason) for reason in reasons.values())


def test_two_files_of_one_source_are_not_mixed_up(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one" / "README.md"), write(tmp_path / "two" / "README.md", b"other")

    reasons = [one.reason for one in find_files([one, two, one])]

    assert reasons[0] is None
    assert "--prefix" in str(reasons[1])
    assert len(reasons) == 2


@pytest.mark.parametrize(
    ("name", "content", "form", "text"),
    [
        ("a.md", b"\xef\xbb\xbf# Hi", Form.MARKDOWN, "# Hi"),
        ("a.MARKDOWN", "ä".encode(), Form.MARKDOWN, "ä"),
        ("a.rst", "Grüße".encode("latin-1"), Form.TEXT, "Grüße"),
        ("a.txt", "wide".encode("utf-16"), Form.TEXT, "wide"),
        ("a.htm", b"<meta charset=iso-8859-2>\xb1", Form.HTML, "<meta charset=iso-8859-2>ą"),
    ],
)
def test_texts_are_read_in_their_own_encoding(
    tmp_path: Path, name: str, content: bytes, form: Form, text: str
) -> None:
    assert read_file(write(tmp_path / name, content)) == (text, form, content)


def test_what_is_no_document_says_why(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    large = tmp_path / "large.txt"
    with large.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    cases = {
        write(tmp_path / "image.md", b"\x89PNG\r\n\x1a\n\x00\x00"): "binary",
        large: "larger than 5 MiB",
        tmp_path / "pipe": "not a regular file",
        tmp_path / "gone.md": "cannot be read",
    }

    for path, reason in cases.items():
        with pytest.raises(UnreadableFile, match=reason):
            read_file(path)
