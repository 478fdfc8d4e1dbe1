"""A first start with nothing configured: what `planq up` makes by itself is enough for webhooks and secrets."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
from standardwebhooks import Webhook
from typer.testing import CliRunner, Result

from planq.deploy.cli.main import create_app
from tests.support.ports import free_port
from tests.support.receiver import receiving
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
PLANQ = (sys.executable, "-m", "planq.deploy.cli.main")
PATIENCE = 240


def planq(data: Path, *arguments: str, **given: Any) -> Result:
    """A command beside it, in this process: what it does is the point, not how it starts."""
    env = {name: None for name in os.environ if name not in bare(data)} | bare(data)
    return CliRunner().invoke(create_app(), arguments, env=env, **given)


def bare(data: Path) -> dict[str, str]:
    """An environment that configures nothing but where the data lies."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PLANQ_") and not k.endswith("_URL")}
    return kept | {"PLANQ_DATA": str(data)}


def test_a_webhook_is_received_and_verified_after_nothing_but_a_start(tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    url = f"http://127.0.0.1:{port}"
    output = tmp_path / "output.txt"
    with output.open("wb") as out:
        up = psutil.Popen(
            [*PLANQ, "up", "--no-flower", "--port", str(port)],
            cwd=ROOT,
            env=bare(data),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    keys = data / "secret-keys"
    try:
        eventually(lambda: "planq is up" in output.read_text(), PATIENCE, what="planq is up")
        assert str(keys) in output.read_text().replace("\n", "")
        assert stat.S_IMODE(keys.stat().st_mode) == 0o600
        with receiving() as receiver:
            endpoint = {"url": receiver.url, "events": ["job.completed"]}
            secret = httpx.post(f"{url}/endpoints", json=endpoint, timeout=60).raise_for_status().json()["secret"]
            plan = {"calls": [{"tool_name": "calculate", "arguments": {"expression": "40 + 2"}}]}
            job_id = httpx.post(f"{url}/jobs", json={"plan": plan}, timeout=60).raise_for_status().json()["id"]
            eventually(lambda: receiver.seen, PATIENCE, what="the webhook")
            (seen,) = receiver.seen
        told = Webhook(secret).verify(seen.body, seen.headers)
        assert (told["type"], told["data"]["id"]) == ("job.completed", job_id)
        stored = planq(data, "secrets", "set", "default", "openai_api_key", input="sk-0123456789abcdef")
        assert stored.exit_code == 0, stored.stderr
        kept = keys.rename(tmp_path / "away")
        findings = {one["name"]: one for one in json.loads(planq(data, "doctor", "--json").stdout)["checks"]}
        assert findings["master keys"]["ok"] is False
        assert "gone, for 2 of 2 secrets" in findings["master keys"]["found"]
        kept.rename(keys)
        assert "all there, for 2 secrets" in planq(data, "doctor", "--json").stdout
    finally:
        up.send_signal(signal.SIGINT)
        try:
            assert up.wait(PATIENCE) == 0
        finally:
            for left in (up, *up.children(recursive=True)) if up.is_running() else ():
                left.kill()
