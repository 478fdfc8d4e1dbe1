"""Choosing who the embedded PostgreSQL runs as: it refuses to be root, and containers are root.

Not root: it runs as we do. Root: the first way that really works here, found by trying it (the candidate must run the
server's binary and write into the data folder):

1. `user`: the user nobody. Works where nobody can reach the binaries and the data.
2. `namespace`: a user namespace in which we have another name. Reaches whatever root reaches (a clone below a closed
   home, a closed temporary folder); not allowed in every container.
3. `reach`: the user nobody, with the one capability to pass through closed folders.

Nothing outside the server's own folder changes its owner or its permissions.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from planq.deploy.local.child import RunAs, bare_environment, launched
from planq.shared.domain.errors import Misconfigured

_PROBE = 'test -x "$1" && "$1" --version >/dev/null && : > "$2/probe" && rm "$2/probe"'


def choose_identity(binary: Path, folder: Path) -> RunAs | None:
    """Return who shall run `binary` on `folder`, None for ourselves; as root, `folder` belongs to them afterwards.

    Raises `Misconfigured` with what was tried when no way works.
    """
    if os.geteuid() != 0:
        return None
    complaints: list[str] = []
    for candidate in _candidates():
        give_to(folder, candidate.owner)
        complaint = _try(candidate, binary, folder)
        if complaint is None:
            return candidate
        complaints.append(f"{candidate.way}: {complaint}")
    raise Misconfigured(
        f"PostgreSQL does not run as root, and no other way to run it on {folder} works here "
        f"({'; '.join(complaints)}). Run planq as another user, or name a server of your own in DATABASE_URL."
    )


def give_to(folder: Path, owner: tuple[int, int]) -> None:
    """As root, make `owner` (uid, gid) the owner of `folder` and all it holds; theirs already, it is not walked."""
    found = folder.stat()
    if (found.st_uid, found.st_gid) == owner:
        return
    for parent, _, names in os.walk(folder):
        for name in (".", *names):
            os.chown(os.path.join(parent, name), *owner, follow_symlinks=False)
    # The top comes last: its owner says that the whole tree has been changed.
    os.chown(folder, *owner)


def _candidates() -> Iterator[RunAs]:
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError as missing:
        raise Misconfigured(
            "PostgreSQL does not run as root, and this system has no user called nobody. "
            "Run planq as another user, or name a server of your own in DATABASE_URL."
        ) from missing
    uid, gid = nobody.pw_uid, nobody.pw_gid
    yield RunAs("user", uid, gid, owner=(uid, gid))
    yield RunAs("namespace", uid, gid, owner=(0, 0))
    yield RunAs("reach", uid, gid, owner=(uid, gid))


def _try(candidate: RunAs, binary: Path, folder: Path) -> str | None:
    """Return why `candidate` cannot run `binary` and write into `folder`, None when it can."""
    command = launched(["sh", "-c", _PROBE, "probe", str(binary), str(folder)], signal.SIGKILL, candidate)
    try:
        done = subprocess.run(  # noqa: S603 - our own
            command, env=bare_environment(), capture_output=True, cwd="/", timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        return "did not answer within 20 s"
    if done.returncode == 0:
        return None
    return done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:][0] if done.stderr.strip() else "refused"
