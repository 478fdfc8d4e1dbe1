"""The data folder of an installation: whether it can be used, whose data it holds, how much room it has."""

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
"""One segment of PostgreSQL's log: where no more is free, it cannot begin the next one, and ends."""


@contextlib.contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Turn the system's refusals to make, read or write something in a data folder into `Misconfigured`."""
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
    """Raise `Misconfigured` for a place of another user, or one with more rights for others than those of this mode.

    Root may own what others use. What is not there is nobody's.
    """
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
    """Make a data folder, in which nobody else may write; raises `Misconfigured` where another's is there."""
    with usable(data):
        data.mkdir(parents=True, exist_ok=True, mode=0o755)
        require_own(data)


def kept_text(data: Path, name: str, make: Callable[[], str]) -> str:
    """Return what a file of the data folder keeps, made on first use and readable by its owner only.

    Raises `Misconfigured` when that folder cannot be used, or others may read or write the file.
    """
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
    """Say whether one of these is the URL of an embedded server with its data below this folder."""
    notes = [note.read_text("utf-8") for note in data.glob("*/run.path")]
    return any(place in unquote(url) for place in (f"{data}/", *notes) for url in urls)


def lacks_space(folder: Path, least: int = LEAST_FREE_BYTES) -> str | None:
    """Return a sentence where fewer bytes than `least` are free for the servers that lie in `folder`, else None.

    A folder that cannot be looked at lacks none.
    """
    try:
        lacks = shutil.disk_usage(folder).free < least
    except OSError:
        return None
    return f"no space left in {folder}: {free_space(folder)}" if lacks else None


def free_space(folder: Path) -> str:
    """Return how much is free where a folder lies, and what to do about it."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    free = shutil.disk_usage(there).free // 1024
    return f"{free} KiB are free; remove something, or move the folder (--data or PLANQ_DATA)"
