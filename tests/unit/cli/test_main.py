"""The command line as a whole: quick to ask, plain in its errors, careful with the password."""

from __future__ import annotations

import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from planq.deploy.local.flower import flower_password
from planq.deploy.local.parts import UpOptions, child_environment, planq_parts
from planq.deploy.local.up import check_ports
from planq.shared.platform.errors import Misconfigured
from planq.shared.platform.redact import without_password
from planq.shared.platform.version import VERSION, release

ROOT = Path(__file__).parents[3]
HEAVY = (
    "celery",
    "kombu",
    "fastapi",
    "sqlalchemy",
    "pydantic",
    "httpx",
    "psycopg",
    "redis",
    "mcp",
    "alembic",
    "selectolax",
    "markdown_it",
)


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom planq.deploy.cli import main\nmain.create_app()\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_version_is_told() -> None:
    command = [sys.executable, "-m", "planq.deploy.cli.main", "--version"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert done.stdout == f"planq {release()}\n"
    assert project["version"] == VERSION


def test_a_deliberate_error_is_one_message_and_an_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "planq.deploy.cli.main", "up", "--flower", "--port", "8123", "--flower-port"]

    done = subprocess.run(
        [*command, "8123", "--data", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert done.stderr.startswith("planq: the API and Flower cannot share port 8123")
    assert "Traceback" not in done.stderr


def test_flowers_password_is_made_once_and_readable_by_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLANQ_FLOWER_PASSWORD", raising=False)

    first = flower_password(tmp_path / "data")

    assert len(first) >= 12
    assert flower_password(tmp_path / "data") == first
    assert stat.S_IMODE((tmp_path / "data" / "flower-password").stat().st_mode) == 0o600
    monkeypatch.setenv("PLANQ_FLOWER_PASSWORD", "mine")
    assert flower_password(tmp_path / "data") == "mine"


def test_a_password_file_left_empty_by_a_crash_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANQ_FLOWER_PASSWORD", raising=False)
    (tmp_path / "flower-password").touch(mode=0o600)

    assert flower_password(tmp_path) == (tmp_path / "flower-password").read_text() != ""


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host:5432/db", "postgresql://me:…@host:5432/db"),
        ("redis://:secret@host/0", "redis://:…@host/0"),
        ("postgresql://planq@/planq?host=%2Fx", "postgresql://planq@/planq?host=%2Fx"),
        ("redis://host:6379/0", "redis://host:6379/0"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_children_get_the_resolved_urls_and_no_competing_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANQ_DATABASE_URL", "postgresql://old")
    place = UpOptions("127.0.0.1", 8000, 5555, tmp_path)

    env = child_environment(place, "postgresql://new", "redis://new")

    assert "PLANQ_DATABASE_URL" not in env
    assert (env["DATABASE_URL"], env["BROKER_URL"]) == ("postgresql://new", "redis://new")


def test_the_parts_are_api_a_worker_of_each_priority_one_of_cpu_and_flower_where_it_is_switched_on(
    tmp_path: Path,
) -> None:
    env = {"PLANQ_DRAIN_SECONDS": "20"}

    parts = planq_parts(UpOptions("127.0.0.1", 8000, 5555, tmp_path), env)

    assert {part.name for part in parts} == {"api", "worker-io", "worker-io-bulk", "worker-cpu", "flower"}
    assert all(part.patience > 20 for part in parts if part.name.startswith("worker"))
    without = planq_parts(UpOptions("127.0.0.1", 8000, None, tmp_path), env)
    assert "flower" not in {part.name for part in without}


def test_an_address_that_is_not_ours_is_refused_with_the_option(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"cannot listen on 192\.0\.2\.1 port 8000.*--port or PLANQ_PORT"):
        check_ports(UpOptions("192.0.2.1", 8000, None, tmp_path))
