"""The script of CI ends itself, however slow the machine is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.rabbitmq import missing

ROOT = Path(__file__).parents[3]


def test_a_run_whose_time_is_over_ends_what_runs_and_says_so(tmp_path: Path) -> None:
    if lack := missing():
        assert os.environ.get("CI") != "true", lack
        pytest.skip(f"{lack}: the script would install it")
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "Makefile").write_text("check:\n\t@echo checked\ntest:\n\t@echo begun; exec sleep 3600\n")

    # The make that runs this test must not be that one's parent.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}

    done = subprocess.run(
        [tmp_path / ".ci/run"],
        env={**environment, "CI_MINUTES": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 124, done.stderr
    assert done.stdout.split() == ["checked", "begun"]
    assert "minute 0 is over, and this had not ended: make test" in done.stderr
