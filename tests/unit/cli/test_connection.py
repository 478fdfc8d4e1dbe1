"""Where commands find planq: given, by port, or what `planq up` wrote down."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from planq.api.cli import runtime
from planq.api.cli.connection import connect, database_settings, default_url, located_settings
from planq.api.cli.runtime import Runtime
from planq.shared.platform.errors import Misconfigured

HERE = Runtime(os.getpid(), "http://127.0.0.1:9999", "postgresql://here", "redis://here")


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PLANQ_") or name in ("DATABASE_URL", "BROKER_URL", "REDIS_URL"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PLANQ_DATA", str(tmp_path))


def gone_pid() -> int:
    """The pid of a process that has ended and been reaped."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_up_writes_down_is_for_its_owner_only_and_goes_with_it(tmp_path: Path) -> None:
    runtime.publish(tmp_path, Runtime(gone_pid(), "http://old", "postgresql://old", "redis://old"))
    runtime.publish(tmp_path, HERE)

    assert runtime.find(tmp_path) == HERE
    assert stat.S_IMODE((tmp_path / "runtime.json").stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["runtime.json"]
    runtime.withdraw(tmp_path)
    runtime.withdraw(tmp_path)
    assert runtime.find(tmp_path) is None


def test_a_killed_up_counts_as_none(tmp_path: Path) -> None:
    runtime.publish(tmp_path, Runtime(gone_pid(), "http://old", "postgresql://old", "redis://old"))

    assert runtime.find(tmp_path) is None
    assert runtime.find(tmp_path / "nowhere") is None


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"pid": 1})])
def test_a_file_that_is_none_of_ours_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "runtime.json").write_text(content)

    with pytest.raises(Misconfigured, match=r"runtime\.json: expected what `planq up` writes"):
        runtime.find(tmp_path)


def test_the_api_is_at_the_given_port_else_where_up_runs_else_at_8000(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_url() == "http://127.0.0.1:8000"
    runtime.publish(tmp_path, HERE)
    assert default_url() == "http://127.0.0.1:9999"
    monkeypatch.setenv("PLANQ_PORT", "8123")
    assert default_url() == "http://127.0.0.1:8123"
    with connect("http://elsewhere/", None) as client:
        assert client.url == "http://elsewhere"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://a:port"])
def test_a_url_that_is_none_is_refused_with_its_option(url: str) -> None:
    with pytest.raises(Misconfigured, match="--url or PLANQ_URL"):
        connect(url, None)


@pytest.mark.parametrize("key", ["ä", "a b", "a\nb", "a\x00"])
def test_a_key_that_no_header_carries_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(Misconfigured, match=r"--api-key or PLANQ_API_KEY: expected visible ASCII") as caught:
        connect("http://x", key)
    assert key not in caught.value.message


def test_the_databases_url_is_the_given_one_else_that_of_a_running_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Misconfigured, match="start `planq up`, or set DATABASE_URL"):
        database_settings()
    runtime.publish(tmp_path, HERE)
    assert database_settings().database_url == "postgresql://here"
    assert located_settings().broker_url == "redis://here"
    monkeypatch.setenv("DATABASE_URL", "postgresql://given")
    assert database_settings().database_url == "postgresql://given"
    assert located_settings().broker_url == "redis://here"


def test_a_file_that_others_may_have_written_is_not_believed(tmp_path: Path) -> None:
    runtime.publish(tmp_path, runtime.Runtime(os.getpid(), "http://127.0.0.1:1", "", ""))
    assert runtime.find(tmp_path) is not None
    (tmp_path / runtime.FILE).chmod(0o666)
    with pytest.raises(Misconfigured, match="others may write it"):
        runtime.find(tmp_path)
