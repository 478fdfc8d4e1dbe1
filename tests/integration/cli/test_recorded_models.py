"""`planq record` and `planq replay`, as docs/testing.md prints them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.pinned_env import ROOT

PAGE = (ROOT / "docs/testing.md").read_text("utf-8")


def test_the_recorded_model_works_as_printed(tmp_path: Path) -> None:
    (program,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "planq_cassette" in block)
    commands = re.findall(r"^\$ (planq re.*)\n(.*)$", PAGE, re.MULTILINE)
    (failure,) = re.findall(r"^AssertionError: (.*)$", PAGE, re.MULTILINE)
    test = tmp_path / "test_clerk.py"
    test.write_text(program)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PLANQ_")}
    own["PATH"] = f"{Path(sys.executable).parent}:{own['PATH']}"

    def run(command: str) -> str:
        script = f"""planq() {{ '{sys.executable}' -m planq.deploy.cli.main "$@"; }}\n{command}"""
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=own, capture_output=True, text=True, check=False, timeout=120
        )
        return done.stdout + done.stderr

    assert len(commands) == 2
    for command, printed in commands:
        assert printed in run(command)
    # as long as another program than before: an interpreter does not take the compiled one for it
    test.write_text(program.replace('"nights": 2', '"nights": 3') + "\n")
    said = run("pytest -q -o planq_cassette=cassette.jsonl")

    assert failure in said.replace(f"{tmp_path}/", "")
