"""The files that `planq knowledge load` was pointed at: which of them are documents, and their text.

A document's source is its path below the folder that was named (for a file: its name), never an absolute path: it is
shown to models and people elsewhere. Symbolic links are followed to files inside that folder only, so that a folder
from somebody else cannot bring in what lies beside it; hidden files and folders are left out.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from planq.shared.platform.errors import storable
from planq.shared.platform.values.charsets import decoded_page

MAX_FILE_BYTES = 5 * 1024 * 1024
"""A text larger than this is a data set or a log, and no document that a person searches."""

_MARKDOWN = frozenset({".md", ".markdown", ".mdown", ".mkd"})
_HTML = frozenset({".html", ".htm", ".xhtml"})
_BINARY = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
"""Control characters that no text of any encoding in use here holds (tab, line ends, form feed and ESC do occur)."""


class Form(StrEnum):
    """How a text is written."""

    MARKDOWN = "markdown"
    HTML = "html"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to load, or a reason to skip it."""

    source: str
    path: Path
    reason: str | None = None


class UnreadableFile(Exception):
    """This file is no document; the text says why."""


def find_files(paths: Iterable[Path], prefix: str = "") -> Iterator[FoundFile]:
    """Yield every file under the given files and folders, each once, in the order of their names."""
    sources: dict[str, str] = {}
    seen: set[str] = set()
    for root in paths:
        for found in _walk(root) if root.is_dir() else [FoundFile(root.name, root)]:
            source = storable(prefix + found.source)
            real = os.path.realpath(found.path)  # unlike Path.resolve, it bears a link to itself
            if found.reason is None and real in seen:
                continue  # named twice, or a link to what is loaded anyway
            seen.add(real)
            earlier = sources.setdefault(source, real)
            reason = found.reason
            if reason is None and earlier != real:
                reason = "another file of this call has the same source; load it by itself with --prefix"
            yield FoundFile(source, found.path, reason)


def read_file(path: Path) -> tuple[str, Form, bytes]:
    """Return a document's text, its form and its bytes; raises `UnreadableFile` for anything that is no text."""
    try:
        # Not blocking: a named pipe without a writer would block without end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableFile("not a regular file")
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnreadableFile(f"cannot be read ({error.strerror})") from error
    if len(raw) > MAX_FILE_BYTES:
        raise UnreadableFile(f"larger than {MAX_FILE_BYTES // 1024**2} MiB")
    form = _form(path)
    return _decode(raw, form), form, raw


def _walk(root: Path) -> Iterator[FoundFile]:
    inside = root.resolve()
    for folder, folders, files in os.walk(root, onerror=None):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in [name for name in folders if (here / name).is_symlink()]:
            # os.walk does not enter these: what they lead to inside the root is found there by its own name.
            if not _is_inside(here / name, inside):
                yield FoundFile(_below(here / name, root), here / name, "a link that leads out of the folder")
        for name in sorted(name for name in files if not name.startswith(".")):
            path = here / name
            outside = path.is_symlink() and not _is_inside(path, inside)
            yield FoundFile(_below(path, root), path, "a link that leads out of the folder" if outside else None)


def _is_inside(link: Path, inside: Path) -> bool:
    return Path(os.path.realpath(link)).is_relative_to(inside)


def _below(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _form(path: Path) -> Form:
    suffix = path.suffix.lower()
    if suffix in _MARKDOWN:
        return Form.MARKDOWN
    return Form.HTML if suffix in _HTML else Form.TEXT


def _decode(raw: bytes, form: Form) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return storable(raw.decode("utf-16", "replace"))
    if _BINARY.search(raw):
        raise UnreadableFile("binary")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    if form is Form.HTML:
        return storable(decoded_page(raw, None))
    # Texts from before UTF-8, on the web and on Windows alike (WHATWG Encoding Standard, table of labels).
    return storable(raw.decode("windows-1252", "replace"))
