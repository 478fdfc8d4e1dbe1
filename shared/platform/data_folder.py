"""The data folder of an installation: its use, its owner, its free space."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

from planq.shared.platform.errors import Misconfigured

LEAST_FREE_BYTES = 16 * 1024 * 1024
"""One WAL segment of PostgreSQL: with less it stops."""


@contextlib.contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Turn system errors in a data folder into `Misconfigured`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Misconfigured(f"no space left in {folder}: {free_space(folder)}") from error
        if error.filename is None:
            raise
        place = Path(os.fsdecode(error.filename))
        if folder not in (place, *place.parents) and place not in folder.parents:
            raise
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            place = next((one for one in (place, *place.parents) if one.exists()), place)
            reason = f"{place} is a file, and planq needs a folder there"
        else:
            reason = f"{place}: {error.strerror or type(error).__name__}"
        raise Misconfigured(
            f"the data folder {folder} cannot be used ({reason}); choose another one with --data or PLANQ_DATA"
        ) from error


def require_own(place: Path, *, others_may: int = 0o055) -> None:
    """Raise `Misconfigured` if another user owns it, or others have more rights than the mode. Root may own it."""
    try:
        found = place.lstat()
    except FileNotFoundError:
        return
    if found.st_uid not in (os.geteuid(), 0):
        raise Misconfigured(
            f"{place} belongs to the user {found.st_uid}, and this is the user {os.geteuid()}: run planq as that "
            f"user, or choose another folder with --data or PLANQ_DATA"
        )
    if stat.S_ISLNK(found.st_mode):
        raise Misconfigured(f"{place} is a link, and planq keeps no secrets behind one: put the file itself there")
    if surplus := stat.S_IMODE(found.st_mode) & 0o077 & ~others_may:
        rights = " and ".join(name for bits, name in ((0o044, "read"), (0o022, "write")) if surplus & bits) or "enter"
        raise Misconfigured(
            f"{place} has the mode {stat.S_IMODE(found.st_mode):04o}, by which others may {rights} it: "
            f"run `chmod {(stat.S_IMODE(found.st_mode) & ~surplus) & 0o777:o} {place}`"
        )


def make_own(data: Path) -> None:
    """Make a data folder that others cannot write; raises `Misconfigured` for a foreign one."""
    with usable(data):
        data.mkdir(parents=True, exist_ok=True, mode=0o755)
        require_own(data)


def kept_text(data: Path, name: str, make: Callable[[], str]) -> str:
    """Return a file's text, made on first use and readable by its owner only; raises `Misconfigured`."""
    make_own(data)
    with usable(data):
        file = data / name
        require_own(file, others_may=0)
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            if kept := file.read_text("ascii").strip():
                return kept
            descriptor = os.open(
                file, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW
            )  # an earlier process died before it wrote
        text = make()
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write(text)
        return text


def serves(data: Path, *urls: str) -> bool:
    """Return whether a URL is of an embedded server with its data in this folder."""
    notes = [note.read_text("utf-8") for note in data.glob("*/run.path")]
    return any(place in unquote(url) for place in (f"{data}/", *notes) for url in urls)


def lacks_space(folder: Path, least: int = LEAST_FREE_BYTES) -> str | None:
    """Return a sentence if fewer than `least` bytes are free, else None, also for an unreadable folder."""
    try:
        lacks = shutil.disk_usage(folder).free < least
    except OSError:
        return None
    return f"no space left in {folder}: {free_space(folder)}" if lacks else None


def free_space(folder: Path) -> str:
    """Return how much space is free, and what to do."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    free = shutil.disk_usage(there).free // 1024
    return f"{free} KiB are free; remove something, or move the folder (--data or PLANQ_DATA)"
