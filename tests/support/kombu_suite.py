"""kombu's own integration tests for Redis, from its source distribution: version and hash are those of our lock file.

`make test` runs `python -m tests.support.kombu_suite` before a whole run, so that the tests themselves need no
network. As a plug-in of pytest (`-p tests.support.kombu_suite`) this puts planq's transport behind kombu's `redis://`.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from kombu.transport import TRANSPORT_ALIASES

from tests.support.pinned_env import ROOT

SHARD = "PLANQ_KOMBU_SHARD"
"""Which of the tests this process runs, `NUMBER/COUNT`."""

OPTIONS = "PLANQ_KOMBU_AS_PLANQ"
"""Set: with what planq asks of the transport, instead of what the tests ask."""

_PACKAGE = "kombu"


def folder() -> Path:
    """Return where the tests lie, fetched now if they are not there; raise when they cannot be fetched."""
    pinned = "\n".join(_pinned((ROOT / "requirements.lock").read_text().splitlines()))
    envs = Path(os.environ.get("PLANQ_TEST_ENVS") or ROOT / ".planq-test-envs").absolute()
    target = envs / f"{_PACKAGE}-{hashlib.sha256(pinned.encode()).hexdigest()[:12]}"
    envs.mkdir(parents=True, exist_ok=True)
    with (envs / f"{_PACKAGE}.lock").open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            for old in envs.glob(f"{_PACKAGE}-*"):
                shutil.rmtree(old)
            target.mkdir()
            _fetch(pinned, target)
            (target / "complete").touch()
    return target


def _pinned(lock: Iterable[str]) -> Iterable[str]:
    """Return the lines of the lock file about the package, its hashes included."""
    begun = itertools.dropwhile(lambda line: not line.startswith(f"{_PACKAGE}=="), lock)
    for line in begun:
        yield line
        if not line.endswith("\\"):
            return


def _fetch(pinned: str, target: Path) -> None:
    wanted = target / "wanted.txt"
    wanted.write_text(f"{pinned}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    source = ["--no-binary", _PACKAGE, "--no-build-isolation", "--require-hashes", "-r", str(wanted)]
    subprocess.run([*pip, *source, "--dest", str(target)], check=True)
    (archive,) = target.glob(f"{_PACKAGE}-*.tar.gz")
    with tarfile.open(archive) as file:
        # Only the tests: the package itself is the one that planq runs on.
        tests = [one for one in file.getmembers() if one.name.split("/")[1:2] == ["t"]]
        # Python 3.11.2 has no filters yet; the archive's hash is checked.
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        file.extractall(target, tests, **filters)
    (tests_folder,) = target.glob(f"{_PACKAGE}-*/t")
    tests_folder.rename(target / "t")
    tests_folder.parent.rmdir()


def pytest_configure(config: pytest.Config) -> None:
    """Use planq's transport."""
    for marker in ("env(name): what kombu's tests need", "flaky: kombu runs them up to five times more"):
        config.addinivalue_line("markers", marker)
    # Late: the process that starts the tests imports this module too.
    from planq.shared.broker import transport

    TRANSPORT_ALIASES["redis"] = f"{transport.__name__}:Transport"
    if os.environ.get(OPTIONS):
        transport.Channel.ack_emulation = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep this process's share."""
    number, _, count = os.environ.get(SHARD, "0/1").partition("/")
    items[:] = items[int(number) :: int(count)]


if __name__ == "__main__":
    folder()
