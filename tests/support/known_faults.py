"""Ask a package index which versions of a lock have known faults: `python -m tests.support.known_faults`.

A fault for which a fixed version is out fails (exit code 1), for there is something to do; one without is printed. An
index that cannot be asked, or that tells nothing of faults, is told and fails nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_SECONDS = 10.0
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Fault:
    """A known fault of a version in the lock; `fixed` are the versions without it."""

    package: str
    version: str
    id: str
    summary: str
    fixed: tuple[str, ...]


class IndexAway(Exception):
    """The index cannot be asked, or tells nothing of faults."""


def pinned(lock: str) -> list[tuple[str, str]]:
    """Return the names and versions of a lock."""
    return _PINNED.findall(lock)


def faults_of(index: str, package: str, version: str) -> Iterator[Fault]:
    """Yield the known faults of a version; raises `IndexAway`."""
    address = f"{index.rstrip('/')}/{package}/{version}/json"
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
            document = json.load(answer)
        found = document["vulnerabilities"]
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return  # not from this index
        raise IndexAway(f"{error.code} for {package} {version}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IndexAway(f"no answer for {package} {version} ({type(error).__name__})") from error
    for one in found:
        if not one.get("withdrawn"):
            summary = one.get("summary") or one.get("details") or ""
            fixed = tuple(one.get("fixed_in") or ())
            yield Fault(package, version, str(one.get("id")), " ".join(summary.split())[:200], fixed)


def main(arguments: list[str] | None = None) -> int:
    """Print what is known of a lock; return the exit code."""
    from pip._internal.models.index import PyPI

    parser = argparse.ArgumentParser(description="Known faults of the packages of a lock.")
    parser.add_argument("--index", default=PyPI.pypi_url, help="where the index answers <name>/<version>/json")
    parser.add_argument("lock", nargs="?", type=Path, default=Path("requirements.lock"))
    given = parser.parse_args(arguments)
    versions = pinned(given.lock.read_text("utf-8"))
    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            several = list(pool.map(lambda one: list(faults_of(given.index, *one)), versions))
    except IndexAway as away:
        sys.stdout.write(f"known faults: not looked up, for the index does not tell: {away}\n")
        return 0
    faults = [fault for found in several for fault in found]
    for fault in faults:
        todo = f"fixed in {', '.join(fault.fixed)}" if fault.fixed else "not fixed yet"
        sys.stdout.write(f"{fault.package} {fault.version}: {fault.id}, {todo}: {fault.summary}\n")
    sys.stdout.write(f"known faults: {len(faults)} in {len(versions)} packages of {given.lock}\n")
    return int(any(fault.fixed for fault in faults))


if __name__ == "__main__":
    sys.exit(main())
