"""README "First job": the commands as printed give what is printed, but for ids and times."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stack import Stack

README = Path(__file__).parents[3] / "README.md"
MARK = "--- next ---"


WALKS = [("First job", "Durable execution in one picture", 5), ("Agents", "Models", 6)]
"""From which heading to which, and how many commands at least."""


def steps(first: str, last: str) -> list[tuple[str, str]]:
    """Every command of a walk-through with the output that is printed under it."""
    text = README.read_text("utf-8")
    text = text[text.index(f"## {first}\n") : text.index(f"## {last}\n")]
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = one.partition("\n")
            found.append((command, output))
    return found


def steady(text: str) -> str:
    """The text without what differs from run to run."""
    text = re.sub(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "ID", text)
    text = re.sub(r"\b\d+\.\d\d s\b", "SECONDS", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "TIME", text).strip()


@pytest.mark.parametrize(("first", "last", "least"), WALKS, ids=[walk[0] for walk in WALKS])
def test_the_walk_through_works_as_printed(stack: Stack, first: str, last: str, least: int) -> None:
    if shutil.which("curl") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("curl is not installed")
        pytest.skip("curl is not installed")
    walk = steps(first, last)
    script = f"\necho '{MARK}'\n".join(command for command, _ in walk)
    script = f"planq() {{ '{sys.executable}' -m deploy.cli.main \"$@\"; }}\n{script}"
    script = script.replace("http://127.0.0.1:8000", stack.url)

    done = subprocess.run(
        ["bash", "-ec", f"exec 2>&1\n{script}"],
        cwd=README.parent,
        env={**os.environ, "PLANQ_URL": stack.url},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout

    printed = [steady(part) for part in done.stdout.split(MARK)]
    assert len(walk) >= least
    assert printed == [steady(output) for _, output in walk]
