"""What a fresh clone installs from: two locks of versions and hashes, no index's address, and few make targets."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from planq.deploy.install import run_pip
from tests.support.tiers import some

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS = PROJECT["dependency-groups"]
RUNNING = (ROOT / "requirements.lock").read_text()
TESTING = (ROOT / "requirements-dev.lock").read_text()


def entries(lock: str) -> list[str]:
    return re.split(r"\n(?=\S)", lock.strip())


def locked(lock: str) -> set[str]:
    """The names that pip installs from a lock on this machine."""
    wanted = (Requirement(entry.partition(" \\")[0]) for entry in entries(lock))
    return {canonicalize_name(one.name) for one in wanted if one.marker is None or one.marker.evaluate()}


def closure(wanted: Iterable[str]) -> set[str]:
    """The names of what is wanted here and of all that it requires, as the installed packages say."""
    found: dict[str, set[str]] = {}
    left = [(Requirement(text), {""}) for text in wanted]
    while left:
        one, extras = left.pop()
        if one.marker is not None and not any(one.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        name = canonicalize_name(one.name)
        asked = {"", *one.extras}
        if not asked <= found.get(name, set()):
            found.setdefault(name, set()).update(asked)
            left += [(Requirement(text), asked) for text in distribution(name).requires or ()]
    return set(found)


def imported(folder: str) -> set[str]:
    """The names at the top of whatever is imported anywhere in a folder, but for what pytest alone loads."""
    modules: set[str] = set()
    plugin = ROOT / "deploy/package/planq/testing/plugin.py"
    for path in set((ROOT / folder).rglob("*.py")) - {plugin}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                modules.add(node.module)
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("lock", [RUNNING, TESTING], ids=["running", "testing"])
def test_a_lock_names_no_index(lock: str) -> None:
    assert "://" not in lock
    assert not re.search(r"^\s*-(-|i|f)", "\n".join(entry.splitlines()[0] for entry in entries(lock)), re.MULTILINE)


@pytest.mark.parametrize("lock", [RUNNING, TESTING], ids=["running", "testing"])
def test_every_locked_version_is_exact_and_hashed(lock: str) -> None:
    assert len(entries(lock)) > 50
    for entry in entries(lock):
        assert re.match(r"[A-Za-z0-9._-]+==[\w.!+]+( ; [^\n]+)? \\\n    --hash=sha256:[0-9a-f]{64}", entry), entry


def test_tests_run_on_the_versions_that_planq_runs_on() -> None:
    assert set(entries(RUNNING)) < set(entries(TESTING))


def test_running_installs_what_the_project_requires_and_nothing_else() -> None:
    assert locked(RUNNING) == closure([*PROJECT["project"]["dependencies"], *GROUPS["build"]])


def test_testing_adds_what_the_tests_require_and_nothing_else() -> None:
    tools = [text for text in GROUPS["dev"] if isinstance(text, str)]

    assert locked(TESTING) == locked(RUNNING) | closure(tools)


@pytest.mark.parametrize("folder", some(["api", "worker", "shared", "deploy"], "worker"))
def test_planq_imports_only_what_running_installs(folder: str) -> None:
    provided = packages_distributions()
    modules = imported(folder) - sys.stdlib_module_names - {"planq"}
    unknown = {one for one in modules if not locked(RUNNING) & set(map(canonicalize_name, provided.get(one, ())))}

    assert unknown == set()


def test_what_builds_the_project_is_locked_so_that_installing_it_asks_no_index() -> None:
    builders = {canonicalize_name(Requirement(text).name) for text in PROJECT["build-system"]["requires"]}

    assert builders <= locked(RUNNING)


def test_the_image_has_what_running_installs_and_nothing_that_only_tests_need() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()

    assert set(re.findall(r"requirements[\w.-]*", dockerfile)) == {"requirements.lock"}
    assert {"pytest", "moto", "mypy", "ruff"} <= locked(TESTING) - locked(RUNNING)


def test_the_makefile_has_the_documented_targets_and_no_more() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))

    assert targets == {"up", "test", "test-fast", "check", "bench", "chaos", "dist", "docs", "release", "clean"}


PYTHON = """#!/bin/sh
# Stands for the interpreter, before and in the environment that it makes: writes down what it is asked for.
echo "$(basename "$0") $*" >> {asked}
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/planq"; fi
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder in which make finds what decides about an installation, and an interpreter that installs nothing."""
    for name in ("Makefile", "requirements.lock", "requirements-dev.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    interpreter = tmp_path / "interpreter"
    interpreter.write_text(PYTHON.format(asked=tmp_path / "asked"))
    interpreter.chmod(0o755)
    return tmp_path


def installs(clone: Path, target: str) -> Sequence[str]:
    """Run a target of make; return the locks that were installed for it."""
    asked = clone / "asked"
    asked.write_text("")
    # The make that runs this test must not be that one's parent.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    subprocess.run(["make", target, "PYTHON=./interpreter"], cwd=clone, env=environment, check=True)
    return re.findall(r"^python deploy/install\.py (\S+)$", asked.read_text(), re.MULTILINE)


def test_an_environment_made_for_running_is_completed_for_the_tests(clone: Path) -> None:
    assert installs(clone, "up") == ["requirements.lock"]
    assert installs(clone, "up") == []
    assert installs(clone, "test") == ["requirements-dev.lock"]
    assert installs(clone, "chaos") == installs(clone, "up") == []


def test_an_environment_made_for_the_tests_is_enough_for_running(clone: Path) -> None:
    assert installs(clone, "bench") == ["requirements-dev.lock"]
    assert installs(clone, "up") == installs(clone, "test") == []


@pytest.mark.parametrize(
    ("first", "further", "beginning"),
    [("--no-index", "--find-links", ""), ("--no-deps", "--extra-index-url", "file://")],
    ids=["folders", "indexes"],
)
def test_ignored_locations_are_one_line_and_errors_stay(
    first: str, further: str, beginning: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = [f"{beginning}{tmp_path / name}" for name in "ab"]
    gone = (
        ["--index-url", options[0], further, options[1]] if beginning else [further, options[0], further, options[1]]
    )
    command = [sys.executable, "-m", "pip", "download", "--isolated", first, "--no-deps", "-d", str(tmp_path)]
    code = run_pip([*command, *gone, "planq-has-no-such-package"])

    said = capfd.readouterr().err
    assert code == 1
    assert "No matching distribution found for planq-has-no-such-package" in said
    assert "' is ignored" not in said
    assert said.count("pip ignored 2 folders") == 1


@pytest.mark.timeout(300)  # pip reads the metadata of every package that is there
def test_installing_says_what_it_installs_and_how_far_it_has_come(tmp_path: Path) -> None:
    # All of it is there already, so that pip asks no index.
    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "install.py"), str(ROOT / "requirements-dev.lock")],
        env={**os.environ, "PIP_NO_INDEX": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    lines = done.stdout.splitlines()
    count = len(entries(TESTING))
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith(f"planq: installing {count} packages into {sys.prefix}")
    assert f"planq: fetching, 100 of {count}" in lines
    assert re.fullmatch(r"planq: installed in \d+ s", lines[-1])


def test_cleaning_never_removes_the_data() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\nclean:")[2].partition("\n\n")[0]

    assert not re.search(r"rm -rf[^\n]*\.planq(?![\w-])", recipe)
