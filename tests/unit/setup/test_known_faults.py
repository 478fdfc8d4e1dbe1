"""The look for known faults of locked packages: what fails, what is told, and an index that is away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.known_faults import main, pinned
from tests.support.ports import free_port
from tests.support.recorder import recorder

LOCK = """\
celery[redis]==5.7.0 \\
    --hash=sha256:00
kombu==5.7.1 ; python_version < "4"
# a comment==1
"""
FAULT = {"id": "X-1", "summary": "It\nfalls over.", "details": "long", "fixed_in": ["5.7.1"], "withdrawn": None}


def looked(tmp_path: Path, *found: dict[str, Any]) -> int:
    lock = tmp_path / "some.lock"
    lock.write_text(LOCK)
    with recorder() as index:
        index.answer(200, {"vulnerabilities": []})
        index.answer_in_turn("/celery/5.7.0/json", {"vulnerabilities": list(found)})
        code = main(["--index", index.url, str(lock)])
        assert sorted(path for _, path, _, _ in index.asked) == ["/celery/5.7.0/json", "/kombu/5.7.1/json"]
    return code


def test_a_fault_that_is_fixed_elsewhere_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert looked(tmp_path, FAULT) == 1
    assert "celery 5.7.0: X-1, fixed in 5.7.1: It falls over." in capsys.readouterr().out


def test_one_without_a_fix_is_told_and_a_withdrawn_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    withdrawn = {**FAULT, "id": "X-2", "withdrawn": "2026-01-01"}
    assert looked(tmp_path, {**FAULT, "fixed_in": []}, withdrawn) == 0
    told = capsys.readouterr().out
    assert "X-1, not fixed yet" in told
    assert "X-2" not in told
    assert "known faults: 1 in 2 packages" in told


def test_an_index_that_is_away_or_tells_nothing_fails_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(LOCK)
    assert main(["--index", f"http://127.0.0.1:{free_port()}", str(lock)]) == 0
    with recorder() as index:
        index.answer(200, {})
        assert main(["--index", index.url, str(lock)]) == 0
    assert capsys.readouterr().out.count("not looked up") == 2


def test_every_package_of_the_real_lock_is_read() -> None:
    text = Path(__file__).parents[3].joinpath("requirements.lock").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "#", "-"))]
    assert len(pinned(text)) == len(lines) > 100
