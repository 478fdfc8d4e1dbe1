"""Clients that generators make of `/openapi.json` compile, have every operation, and submit a job."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import generators_env
from tests.support.generators_env import LOCKS
from tests.support.stack import Stack

pytestmark = pytest.mark.whole

IMPORTS = """
import pkgutil, planq_client
for module in pkgutil.walk_packages(planq_client.__path__, "planq_client."):
    __import__(module.name)
"""


@pytest.fixture
def spec(stack: Stack, tmp_path: Path) -> Path:
    """The description of a whole planq that runs."""
    path = tmp_path / "openapi.json"
    path.write_text(httpx.get(f"{stack.url}/openapi.json").text)
    return path


def operations(spec: Path) -> list[dict[str, Any]]:
    return [one for path in json.loads(spec.read_text())["paths"].values() for one in path.values()]


def run(*command: str | Path, cwd: Path) -> str:
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_client_in_python_has_every_operation_and_submits_a_job(spec: Path, stack: Stack, tmp_path: Path) -> None:
    binaries = generators_env.for_python() / "bin"
    made = tmp_path / "made"
    generate = ("generate", "--path", spec, "--config", LOCKS / "config.yaml", "--output-path", made)

    run(binaries / "openapi-python-client", *generate, cwd=tmp_path)

    modules = {path.stem for path in made.glob("planq_client/api/*/*.py")}
    assert {one["operationId"] for one in operations(spec)} - modules == set()
    run(sys.executable, "-m", "mypy", "--python-executable", binaries / "python", "planq_client", cwd=made)
    shutil.copy(LOCKS / "submit.py", made)
    run(binaries / "python", "-c", IMPORTS, cwd=made)
    assert run(binaries / "python", "submit.py", stack.url, cwd=made).startswith("completed 6*7 = 42")


def test_a_client_in_typescript_compiles_and_submits_a_job(spec: Path, stack: Stack, tmp_path: Path) -> None:
    folder = generators_env.for_typescript()
    if folder is None:
        pytest.skip("npm is not installed")
    made = tmp_path / "made"
    made.mkdir()
    (made / "node_modules").symlink_to(folder / "node_modules")
    shutil.copy(folder / "package.json", made)
    shutil.copy(LOCKS / "submit.mts", made)

    run(folder / "node_modules/.bin/openapi-typescript", spec, "-o", "planq.ts", cwd=made)
    options = ("--strict", "--module", "nodenext", "--target", "es2022", "--skipLibCheck")
    run(folder / "node_modules/.bin/tsc", *options, "submit.mts", cwd=made)

    names = set(re.findall(r"^    ([a-z_]+): \{$", (made / "planq.ts").read_text(), re.MULTILINE))
    assert {one["operationId"] for one in operations(spec)} - names == set()
    assert run("node", "submit.mjs", stack.url, cwd=made).startswith("completed 6*7 = 42")
