"""The commands of README and docs, as printed, give what is printed, but for ids and times."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.lacking import require
from tests.support.stack import Stack
from tests.support.tiers import rare

ROOT = Path(__file__).parents[3]
MARK = "--- next ---"

WALKS = [
    (("README.md",), 2),
    (("docs/tutorial.md",), 18),
    (("docs/http-jobs.md",), 4),
    (("docs/agents.md",), 6),
    (("docs/batches.md", "docs/streams.md", "docs/page.md", "docs/messages.md", "docs/http-api.md"), 16),
]
"""The pages that one installation serves, one after the other, and how many commands they have at least."""


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def steps(text: str) -> list[tuple[str, str]]:
    """Every command of a page with the output that is printed under it."""
    found: list[tuple[str, str]] = []
    for block in blocks("console", text):
        for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = one.partition("\n")
            found.append((command, output))
    return found


def keep_files(text: str, folder: Path) -> list[str]:
    """Write every block that begins with the name of its file into the folder; return the names."""
    named = [
        (found[1], block)
        for block in (*blocks("python", text), *blocks("yaml", text))
        if (found := re.match(r"# ([\w.]+\.(?:py|yaml))\n", block)) is not None
    ]
    for name, block in named:
        (folder / name).write_text(block)
    return [name for name, _ in named]


def steady(text: str) -> str:
    """The text without what differs from run to run."""
    text = re.sub(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "ID", text)
    text = re.sub(r"\b\d+\.\d\d s\b", "SECONDS", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "TIME", text)
    text = re.sub(r"^(retry: |id: )[\d-]+$", r"\1N", text, flags=re.MULTILINE)
    return re.sub(r'("latency_ms": |"sequence":|asked )\d+', r"\1N", text).strip()


def test_every_page_with_commands_is_walked() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    printed = {str(path.relative_to(ROOT)) for path in pages if blocks("console", path.read_text("utf-8"))}

    assert {page for walked, _ in WALKS for page in walked} == printed


@pytest.mark.parametrize(
    ("pages", "least"),
    [(rare if pages == ("docs/agents.md",) else pytest.param)(pages, least, id=pages[0]) for pages, least in WALKS],
)
def test_the_walk_through_works_as_printed(
    make_stack: Callable[..., Stack],
    database_url: str,
    valkey_url: str,
    tmp_path: Path,
    pages: tuple[str, ...],
    least: int,
) -> None:
    require(None if shutil.which("curl") else "curl is not installed")
    text = "\n".join((ROOT / page).read_text("utf-8") for page in pages)
    walk = steps(text)
    tools = [name.removesuffix(".py") for name in keep_files(text, tmp_path) if name.endswith(".py")]
    env = {"PYTHONPATH": str(tmp_path), "PLANQ_TOOLS": ",".join(tools)} if tools else {}
    stack = make_stack(database_url, valkey_url, env=env)
    stack.start()
    script = f"\necho '{MARK}'\n".join(command for command, _ in walk)
    script = f"planq() {{ '{sys.executable}' -m planq.deploy.cli.main \"$@\"; }}\n{script}"
    script = script.replace("http://127.0.0.1:8000", stack.url)

    done = subprocess.run(
        ["bash", "-ec", f"exec 2>&1\n{script}"],
        cwd=ROOT if "deploy/samples" in script else tmp_path,
        env={**os.environ, "PLANQ_URL": stack.url, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout

    printed = [steady(part) for part in done.stdout.split(MARK)]
    assert len(walk) >= least
    assert printed == [steady(output) for _, output in walk]
