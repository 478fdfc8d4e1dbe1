"""The applications of docs/examples, against a wheel of planq, in an environment and in folders of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import examples_env, wheel
from tests.support.pinned_env import ROOT

pytestmark = pytest.mark.whole

EXAMPLES = ROOT / "docs" / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
IMPOSTORS = ("worker.py", "api/__init__.py", "shared/__init__.py", "deploy.py", "testing.py")
"""What a project may have that is called as parts of planq are; where the example has none, one that must not be
imported."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Python of an environment into which the wheel was installed."""
    interpreter = examples_env.ensure() / "bin" / "python"
    made = wheel.build(tmp_path_factory.mktemp("wheel"))
    pip = [interpreter, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--force-reinstall", made], check=True)
    yield interpreter
    subprocess.run([*pip, "uninstall", "--yes", "planq"], check=True)


def test_the_examples_are_all_there() -> None:
    assert NAMES == ["invoice_desk", "shop", "support_bot"]


@pytest.mark.parametrize("name", NAMES)
def test_an_example(name: str, python: Path, tmp_path: Path, empty_database_url: str, valkey_url: str) -> None:
    project = tmp_path / name
    shutil.copytree(EXAMPLES / name, project, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"))
    for impostor in IMPOSTORS:
        path = project / impostor
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text('raise RuntimeError("this is not planq\'s")\n')
    servers = {"SHOP_DATABASE_URL": empty_database_url, "SHOP_BROKER_URL": valkey_url}
    known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}

    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        tests, cwd=project, env={**known, **servers}, capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
