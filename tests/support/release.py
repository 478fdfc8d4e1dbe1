"""Make a release: `make release VERSION=0.2.0`, on a clean tree whose CI has passed. docs/releasing.md has the steps.

It writes the version, the changelog and a dump of a filled database. It commits, builds from that commit, tries the
wheel in an empty folder, and tags. Nothing is sent anywhere. `dist/` then has the source distribution, the wheel, its
bill of materials (CycloneDX) and the notes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from datetime import date
from pathlib import Path

from planq.shared.platform.version import VERSION
from tests.support import pinned_env, release_dumps
from tests.support.pinned_env import ROOT
from tests.support.ports import free_ports
from tests.support.waiting import eventually

LOCK = Path(__file__).with_suffix(".lock")
NEXT = "## Unreleased\n"
_PLACES = {"pyproject.toml": 'version = "{}"', "shared/platform/version.py": 'VERSION = "{}"'}
_START_SECONDS = 300.0


def main(version: str) -> int:
    """Make the release; return 0, or 2 with what to do first."""
    changelog = ROOT / "CHANGELOG.md"
    today = date.today().isoformat()  # noqa: DTZ011 - the day where it is made
    try:
        check_version(version)
        text, notes = released(changelog.read_text("utf-8"), version, today)
        if _git("status", "--porcelain"):
            raise NotReady("the tree has changes; commit them first")
        if _git("tag", "--list", f"v{version}"):
            raise NotReady(f"v{version} is there already; name another version")
    except NotReady as reason:
        sys.stderr.write(f"no release: {reason}\n")
        return 2
    changelog.write_text(text, "utf-8")
    for name, line in _PLACES.items():
        path = ROOT / name
        path.write_text(path.read_text("utf-8").replace(line.format(VERSION), line.format(version), 1), "utf-8")
    release_dumps.make(version)
    _git("add", "--all")
    _git("commit", "--quiet", "--message", f"Release {version}")
    make_distributions(version, notes)
    _git("tag", "--annotate", f"v{version}", "--message", f"planq {version}")
    sys.stdout.write(
        f"dist/ has planq {version}, and v{version} is tagged; docs/releasing.md says how to publish it\n"
    )
    return 0


def rebuild() -> int:
    """Make the distributions of the release that is checked out; return 0, or 2 with what to do first."""
    if _git("tag", "--points-at", "HEAD", "--list", f"v{VERSION}") == "":
        sys.stderr.write(f"no distributions: this commit is not v{VERSION}; check out a tag of `make release`\n")
        return 2
    make_distributions(VERSION, notes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), VERSION))
    return 0


def make_distributions(version: str, notes: str) -> None:
    """Build this commit into `dist/`, with notes and bill of materials, and try the wheel out."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    build(ROOT / "dist")
    (ROOT / "dist" / f"planq-{version}-notes.md").write_text(notes, "utf-8")
    with tempfile.TemporaryDirectory(prefix="planq-release-") as folder:
        environment = installed(Path(folder), next((ROOT / "dist").glob("*.whl")))
        try_out(environment, Path(folder), f"planq {version}+{_git('rev-parse', 'HEAD')[:12]}")
        describe(environment, ROOT / "dist" / f"planq-{version}.cdx.json")


class NotReady(Exception):
    """Why no release can be made, and what to do."""


def check_version(version: str, current: str = VERSION) -> None:
    """Raise `NotReady` unless a version is of the form 1.2.3 and above the current one."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NotReady(f"expected VERSION=1.2.3, found {version!r}")
    if _numbers(version) <= _numbers(current):
        raise NotReady(f"expected a version above {current}, found {version}")


def released(changelog: str, version: str, day: str) -> tuple[str, str]:
    """Return the changelog in which what is unreleased is of this version, and the notes: the text of that part.

    Raises `NotReady` where nothing is unreleased.
    """
    before, _, after = changelog.partition(NEXT)
    notes, heading, older = after.partition("\n## ")
    if not notes.strip():
        raise NotReady("CHANGELOG.md has nothing under Unreleased")
    return f"{before}{NEXT}\n## {version} ({day})\n{notes}{heading}{older}", notes.strip() + "\n"


def notes_of(changelog: str, version: str) -> str:
    """Return the part of the changelog on a version."""
    _, _, after = changelog.partition(f"\n## {version} (")
    return after.partition("\n")[2].partition("\n## ")[0].strip() + "\n"


def build(folder: Path) -> None:
    """Build the source distribution, and the wheel from it, into a folder."""
    tools = pinned_env.ensure("release", LOCK)
    env = {**os.environ, "PLANQ_COMMIT": _git("rev-parse", "HEAD")}
    command = [
        str(tools / "bin/python"),
        "-m",
        "build",
        "--quiet",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, env=env, check=True)


def installed(folder: Path, wheel: Path) -> Path:
    """Return a new environment in a folder, with the locked versions and a wheel."""
    environment = folder / "env"
    venv.create(environment, with_pip=True)
    pinned_env.install(environment, "--no-deps", "--require-hashes", "-r", str(ROOT / "requirements.lock"))
    pinned_env.install(environment, "--no-deps", "--no-index", str(wheel))
    return environment


def try_out(environment: Path, folder: Path, expected: str) -> None:
    """Run what is installed from an empty folder: it says its version, starts, runs the sample job and stops.

    Raises `RuntimeError` or `CalledProcessError` where it does not.
    """
    place = folder / "empty"
    place.mkdir()
    planq = str(environment / "bin/planq")
    port, flower_port = free_ports(2)
    env = {"PATH": os.environ["PATH"], "PLANQ_PORT": str(port), "PLANQ_FLOWER_PORT": str(flower_port)}
    said = subprocess.run([planq, "--version"], cwd=place, env=env, capture_output=True, text=True, check=True)
    if said.stdout.strip() != expected:
        raise RuntimeError(f"expected {expected}, found {said.stdout.strip()}")
    output = place / "output.txt"
    with output.open("wb") as out:
        up = subprocess.Popen([planq, "up"], cwd=place, env=env, stdout=out, stderr=subprocess.STDOUT)

    def is_healthy() -> bool:
        if up.poll() is not None:
            raise RuntimeError(f"planq up has ended:\n{output.read_text('utf-8')}")
        return "healthy in" in output.read_text("utf-8")

    try:
        eventually(is_healthy, _START_SECONDS)
        sample = [planq, "sample", "--url", f"http://127.0.0.1:{port}"]
        subprocess.run(sample, cwd=place, env=env, stdout=subprocess.DEVNULL, check=True)
    finally:
        up.send_signal(signal.SIGINT)
        code = up.wait(60)
    if code != 0:
        raise RuntimeError(f"planq up ended with {code}:\n{output.read_text('utf-8')}")


def describe(environment: Path, target: Path) -> None:
    """Write the bill of materials of an environment: each package with version, licence and where it comes from."""
    tool = pinned_env.ensure("release", LOCK) / "bin/cyclonedx-py"
    command = [str(tool), "environment", str(environment / "bin/python"), "--output-reproducible", "-o", str(target)]
    subprocess.run(command, check=True)
    found = json.loads(target.read_text("utf-8"))
    for component in found["components"]:
        if component["name"] == "planq":
            del component["externalReferences"]  # where this machine keeps the wheel
    target.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(rebuild() if sys.argv[1:] == ["--dist"] else main("".join(sys.argv[1:2])))
