"""What other people's programs import from planq."""

from __future__ import annotations

import subprocess
import sys

import pytest

import planq
import planq.testing


def test_every_promised_name_is_there_and_no_other() -> None:
    assert {name for name in planq.__all__ if getattr(planq, name, None) is None} == set()
    assert set(planq.__all__) <= set(dir(planq))
    with pytest.raises(AttributeError, match="no attribute 'Planer'"):
        _ = planq.Planer
    with pytest.raises(ImportError, match="ToolEror"):
        from planq import ToolEror  # noqa: F401


def test_who_imports_planq_pays_for_nothing_else() -> None:
    asks = "import sys, planq; print(sorted(name for name in sys.modules if name.startswith('planq')))"
    told = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True).stdout
    assert told == "['planq']\n"


def test_pytest_pays_for_no_more_than_the_plugin_at_its_start() -> None:
    asks = "import sys, planq.testing.plugin; print(sorted(name for name in sys.modules if name.startswith('planq')))"
    told = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True).stdout
    assert told == "['planq', 'planq.testing', 'planq.testing.plugin']\n"
    assert all(getattr(planq.testing, name) for name in planq.testing.__all__)
