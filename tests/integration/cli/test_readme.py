"""README "First job": the commands as printed give what is printed, but for ids and times."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.stack import Stack

README = Path(__file__).parents[3] / "README.md"
MARK = "--- next ---"


def steps() -> list[tuple[str, str]]:
    """Every command of the walk-through with the output that is printed under it."""
    text = README.read_text("utf-8")
    text = text[text.index("## First job\n") : text.index("## Durable execution in one picture\n")]
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = one.partition("\n")
            found.append((command, output))
    return found


def steady(text: str) -> str:
    """The text without what differs from run to run."""
    text = re.sub(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "ID", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "TIME", text).strip()


def test_the_walk_through_works_as_printed(stack: Stack) -> None:
    if shutil.which("curl") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("curl is not installed")
        pytest.skip("curl is not installed")
    walk = steps()
    script = f"\necho '{MARK}'\n".join(command for command, _ in walk)
    script = script.replace("http://127.0.0.1:8000", stack.url)

    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True, timeout=60)

    printed = [steady(part) for part in done.stdout.split(MARK)]
    assert len(walk) >= 5
    assert printed == [steady(output) for _, output in walk]
