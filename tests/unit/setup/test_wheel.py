"""What a wheel holds beside the packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from planq.shared.platform.version import VERSION
from tests.support.pinned_env import ROOT
from tests.support.wheel import COMMIT, FOLDERS, build

pytestmark = pytest.mark.whole  # it builds one


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of planq."""
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The folder into which the wheel was unpacked."""
    folder = wheel.parents[1] / "installed"
    shutil.unpack_archive(wheel, folder, "zip")
    return folder


def test_a_wheel_has_one_package_and_every_file_of_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"planq"}
    tracked = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True)
    kinds = (".py", ".sql", ".lua", ".html", ".css", ".js", ".svg")
    ours = {f"planq/{name}" for name in tracked.stdout.split() if name.endswith(kinds)}
    assert {name for name in ours if "/package/" not in name} - set(names) == set()
    assert {"planq/__init__.py", "planq/py.typed"} <= set(names)
    assert not any("package/planq" in name for name in names)


def test_a_wheel_brings_the_manual_and_the_handbook_that_the_sample_job_searches(
    wheel: Path, installed: Path
) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = (*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/pictures").iterdir())
    documents = {f"planq/shared/platform/manual/pages/{path.name}" for path in sources}
    found = {name for name in names if name.startswith("planq/shared/platform/manual/pages/")}
    assert documents | {"planq/shared/platform/manual/pages/README.md"} == found

    asks = "from planq.deploy.local.sample import HANDBOOK; print(*HANDBOOK.iterdir())"
    told = run(["-c", asks], cwd=installed, installed=installed)
    assert told.stdout.split() == [str(installed / "planq/deploy/samples/handbook/planq.md")]

    shown = run(
        ["-P", "-m", "planq.deploy.cli.main", "docs", "stuck", "in", "queued"], cwd=installed, installed=installed
    )
    assert shown.stdout.startswith("docs/troubleshooting.md#a-job-is-stuck-in-queued")


def test_what_is_installed_says_from_which_commit_it_was_built(tmp_path: Path, installed: Path) -> None:
    said = run(["-P", "-m", "planq.deploy.cli.main", "--version"], cwd=tmp_path, installed=installed)
    assert said.stdout == f"planq {VERSION}+{COMMIT[:12]}\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose modules are called as planq's folders are, with a tool that uses its own."""
    for name in ("worker.py", "api/__main__.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("print('not planq')\n")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "pricing.py").write_text("RATE = 3\n")
    (tmp_path / "deploy.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "greetings.py").write_text(
        "from planq import ToolContext, ToolError, tool\nfrom shared.pricing import RATE\n\n"
        "@tool\ndef greet(name: str) -> str:\n    'Greet somebody.'\n    return name * RATE\n"
    )
    return tmp_path


@pytest.mark.parametrize("command", [["worker", "io"], ["worker", "cpu"], ["api"]], ids=" ".join)
@pytest.mark.parametrize("path", [None, "."], ids=["", "PYTHONPATH=."])
def test_a_project_may_have_modules_of_any_name(
    project: Path, installed: Path, command: list[str], path: str | None
) -> None:
    planq = ["-P", "-m", "planq.deploy.cli.main"]  # what the script `planq` does
    done = run([*planq, *command], cwd=project, installed=installed, path=path, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "_URL is not set" in done.stderr


def test_a_projects_own_tools_are_found_where_it_lies(project: Path, installed: Path) -> None:
    check = ["-P", "-m", "planq.worker", "io", "--check"]
    env = {"BROKER_URL": "redis://127.0.0.1:1/0", "DATABASE_URL": "postgresql://127.0.0.1:1/x"}
    done = run(check, cwd=project, installed=installed, env={**env, "PLANQ_TOOLS": "greetings"}, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def run(
    arguments: list[str],
    *,
    cwd: Path,
    installed: Path,
    path: str | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with the planq of the wheel."""
    paths = os.pathsep.join([str(installed), *([] if path is None else [path])])
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, **(env or {})}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=check)
