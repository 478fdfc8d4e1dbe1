"""`<data>/runtime.json`: where a running `planq up` has its servers, for the commands beside it.

    {"pid": 4711, "api_url": "http://127.0.0.1:8000", "database_url": "postgresql://…", "broker_url": "redis+socket://…"}

It may hold passwords, so only its owner can read it. It is there while `planq up` runs; one that a killed `planq up`
left behind names a process that is gone, and counts as none.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from planq.shared.platform.data_folder import require_own
from planq.shared.platform.errors import Misconfigured

FILE = "runtime.json"

SECRET_KEYS = "secret-keys"  # noqa: S105 - a file's name
"""The file of the data folder that holds the keys under which the embedded database's secrets lie."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The process of `planq up` and the URLs of what it runs."""

    pid: int
    api_url: str
    database_url: str
    broker_url: str


def data_folder() -> Path:
    """Return the data folder: PLANQ_DATA, else `.planq` here."""
    return Path(os.environ.get("PLANQ_DATA") or ".planq").absolute()


def publish(data: Path, runtime: Runtime) -> None:
    """Write the file, in place of an earlier one, readable by its owner only; a reader never sees half of it."""
    draft = data / f"{FILE}.new"
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(runtime), file)
    draft.replace(data / FILE)


def withdraw(data: Path) -> None:
    (data / FILE).unlink(missing_ok=True)


def find(data: Path) -> Runtime | None:
    """Return what runs on a data folder, None when nothing does.

    Raises `Misconfigured` when the file cannot be read by this user or is none of ours: whoever wrote it says where
    keys are sent.
    """
    file = data / FILE
    require_own(file)
    try:
        found = Runtime(**json.loads(file.read_text("utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as refused:
        raise Misconfigured(
            f"{file} cannot be read by this user; run the command as the user who runs `planq up`, or set "
            "DATABASE_URL and BROKER_URL"
        ) from refused
    except (OSError, ValueError, TypeError) as damaged:
        raise Misconfigured(f"{file}: expected what `planq up` writes, found something else; restart it") from damaged
    return found if psutil.pid_exists(found.pid) else None
