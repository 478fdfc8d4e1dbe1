"""The script of CI: it ends itself, however slow the machine is, and runs what failed once more, alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.rabbitmq import missing
from tests.support.second_chance import passes

ROOT = Path(__file__).parents[3]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the script beside a Makefile whose target `test` has this recipe; returns what came of it."""
    if lack := missing():
        assert os.environ.get("CI") != "true", lack
        pytest.skip(f"{lack}: the script would install it")
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho other tests\n")
    python.chmod(0o755)
    # The make that runs this test must not be that one's parent, nor give it its variables.
    given = ("MAKE", "MFLAGS", "PYTEST_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(given)}

    def run(recipe: str, *arguments: str, minutes: int = 75) -> subprocess.CompletedProcess[str]:
        (tmp_path / "Makefile").write_text(f"check:\n\t@echo checked\ntest:\n\t@{recipe}\n")
        return subprocess.run(
            [tmp_path / ".ci/run", *arguments],
            env={**environment, "CI_MINUTES": str(minutes)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_a_run_whose_time_is_over_ends_what_runs_and_says_so(run: Run) -> None:
    done = run("echo begun; exec sleep 3600", minutes=0)
    assert done.returncode == 124, done.stderr
    assert done.stdout.split() == ["checked", "begun"]
    assert "minute 0 is over, and this had not ended: make test" in done.stderr


def test_what_fails_again_alone_fails_the_run(run: Run) -> None:
    done = run('echo "tested [$(PYTEST_ARGS)]"; false')
    assert done.returncode == 2
    assert done.stdout.splitlines() == [
        "checked",
        "tested [--long]",
        "tested [--long --last-failed --last-failed-no-failures=none]",
    ]


def test_a_release_is_tried_whole(run: Run) -> None:
    done = run('echo "tested [$(PYTEST_ARGS)]"', "--whole")
    assert done.returncode == 0, done.stderr
    whole = ["tested [--whole --ignore=tests/chaos]", "tested [--whole tests/chaos]"]
    assert done.stdout.splitlines() == ["checked", *whole, *["other tests"] * 3]


def test_an_argument_that_is_unknown_is_refused(run: Run) -> None:
    done = run("true", "--hole")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ".ci/run: expected no argument or --whole, found --hole\n"


def test_what_passes_alone_is_told(run: Run) -> None:
    done = run('case "$(PYTEST_ARGS)" in *--last-failed*) ;; *) false ;; esac')
    assert done.returncode == 0, done.stderr
    assert "what failed beside others passed alone" in done.stderr
    assert done.stdout.splitlines()[-1] == "other tests"


def test_what_has_no_time_left_is_named_and_fails_nothing(run: Run) -> None:
    done = run("true", "--whole", minutes=4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["checked"]
    assert done.stderr.count("less than five minutes were left, so this was not run: ") == 3


@pytest.mark.parametrize(
    ("first", "second", "is_good", "runs"),
    [(0, 0, True, 1), (1, 0, True, 2), (1, 1, False, 2), (1, 5, False, 2), (2, 0, False, 1), (5, 0, False, 1)],
)
def test_only_a_test_that_failed_has_a_second_chance(
    tmp_path: Path, first: int, second: int, is_good: bool, runs: int
) -> None:
    """5 is pytest's word for no tests, 2 for a run that was broken off."""
    python, ran = tmp_path / "python", tmp_path / "ran"
    python.write_text(
        f'#!/bin/sh\necho "$@" >> {ran}\ncase "$*" in *--last-failed*) exit {second} ;; *) exit {first} ;; esac\n'
    )
    python.chmod(0o755)

    assert passes(str(python), ["tests/some"]) is is_good
    assert (
        ran.read_text().splitlines()
        == [
            "-m pytest tests/some -n auto",
            "-m pytest tests/some -n 0 --last-failed --last-failed-no-failures=none",
        ][:runs]
    )
