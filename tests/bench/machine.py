"""On what a run was measured: the machine, the date, and the versions that matter. For the head of the table."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from planq.deploy.local.postgres import installed_binaries
from planq.deploy.local.valkey import installed_binary
from planq.shared.platform.version import VERSION

PACKAGES = ("celery", "fastapi", "psycopg", "uvicorn")


def describe() -> dict[str, str]:
    """Return what to print over the table, by name."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} × {_processor()}, {psutil.virtual_memory().total / 2**30:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "planq": VERSION,
        "postgresql": _said(installed_binaries() / "postgres", "--version").rpartition(") ")[2],
        "valkey": _said(installed_binary(), "--version").partition("v=")[2].partition(" ")[0],
        **{name: version(name) for name in PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.machine()


def _said(*command: str | Path) -> str:
    """Return what a program prints, empty when it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
