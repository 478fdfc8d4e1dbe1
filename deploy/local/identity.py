"""Chooses the user of the embedded PostgreSQL, which refuses to run as root, as containers do.

As root, it takes the first way that works here: `reach`, the user nobody with one capability to pass closed folders,
or `namespace`, a user namespace with another name for us, whose files belong to root.

The data folder is closed and belongs to root, because many services run as nobody: they reach neither the data nor
the socket, and the kernel protects a process with a capability from them. Nothing outside the server's folder
changes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from planq.deploy.local.child import RunAs, bare_environment, launched
from planq.shared.platform.errors import Misconfigured

_PROBE = 'test -x "$1" && "$1" --version >/dev/null && : > "$2/probe" && rm "$2/probe"'


def choose_identity(binary: Path, folder: Path) -> RunAs | None:
    """Return who runs `binary` below `folder`, None for ourselves; raise `Misconfigured` if no way works."""
    if os.geteuid() != 0:
        return None
    os.chown(folder, 0, 0)
    folder.chmod(0o700)
    complaints: list[str] = []
    for candidate in _candidates():
        complaint = _try(candidate, binary, folder / "probe")
        if complaint is None:
            return candidate
        complaints.append(f"{candidate.way}: {complaint}")
    raise Misconfigured(
        f"PostgreSQL does not run as root, and no other way to run it on {folder} works here "
        f"({'; '.join(complaints)}). As the plain user nobody it would give its data to every other process of that "
        "user. Run planq as another user, or name a server of your own in DATABASE_URL."
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
    yield RunAs("reach", uid, gid, owner=(uid, gid))
    yield RunAs("namespace", uid, gid, owner=(0, 0))


def _try(candidate: RunAs, binary: Path, folder: Path) -> str | None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    give_to(folder, candidate.owner)
    command = launched(["sh", "-c", _PROBE, "probe", str(binary), str(folder)], signal.SIGKILL, candidate)
    try:
        done = subprocess.run(  # noqa: S603 - our own
            command, env=bare_environment(), capture_output=True, cwd="/", timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        return "did not answer within 20 s"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if done.returncode == 0:
        return None
    return done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:][0] if done.stderr.strip() else "refused"
