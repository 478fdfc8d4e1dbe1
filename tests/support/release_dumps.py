"""Filled databases of releases, from which later ones have to upgrade.

`python -m tests.support.release_dumps 0.2.0` runs planq from this checkout, has it store something of each kind, with
work in flight, and writes `tests/data/releases/0.2.0.sql.gz`. `make release` does it; a dump stays as it was made.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psycopg

from planq.deploy.local.postgres import installed_binaries
from planq.deploy.local.valkey import EmbeddedValkey
from tests.support.servers import TestPostgres, server_folder
from tests.support.stack import Stack
from tests.support.waiting import eventually

FOLDER = Path(__file__).parents[1] / "data" / "releases"
KEPT = 2
"""So many releases back an upgrade is tested from."""

SETTINGS = {"PLANQ_TOOLS": "tests.faults.tools,tests.faults.upgraded", "PLANQ_SWEEP_SECONDS": "0.2"}

_WAITS_SECONDS = 600


def dumps() -> list[Path]:
    """Return the dumps of the last releases, oldest first."""
    found = sorted(FOLDER.glob("*.sql.gz"), key=lambda path: tuple(map(int, path.name[: -len(".sql.gz")].split("."))))
    return found[-KEPT:]


def restore(dump: Path, url: str) -> None:
    """Fill an empty database with a dump."""
    lines = gzip.decompress(dump.read_bytes()).decode().split("\n")
    statements = [line for line in lines if not line.startswith("\\")]  # commands of psql
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("\n".join(statements).encode())


def fill(stack: Stack) -> None:
    """Store something of each kind: what has ended, and what is in flight."""
    with httpx.Client(base_url=stack.url, timeout=60, trust_env=False) as http:

        def send(method: str, path: str, **more: Any) -> Any:
            response = http.request(method, path, **more)
            assert response.is_success, f"{method} {path}: {response.text}"
            return response.json()

        def job(*calls: tuple[str, Mapping[str, Any]], **fields: Any) -> str:
            plan = {"calls": [{"tool_name": name, "arguments": arguments} for name, arguments in calls]}
            return str(send("POST", "/jobs", json={"plan": plan, **fields})["id"])

        def is_over(job_id: str) -> bool:
            return send("GET", f"/jobs/{job_id}")["status"] in ("completed", "failed", "cancelled")

        agent = {"name": "clerk", "prompt": "You are a clerk.", "tools": ["calculate"]}
        send("PUT", "/agents/clerk", json=agent)
        ended = [
            job(("calculate", {"expression": "6 * 7"})),
            job(("calculate", {"expression": "1 / 0"})),
            job(("fault_note", {"text": "x" * 200_000})),
            str(send("POST", "/jobs", json={"input": "What is 3 * 4?"})["id"]),
            str(send("POST", "/jobs", json={"agent": "clerk", "input": "What is 5 * 5?"})["id"]),
        ]
        cancelled = job(("wait", {"seconds": _WAITS_SECONDS}))
        send("POST", f"/jobs/{cancelled}/cancel")
        paused = job(("wait", {"seconds": 1}), ("calculate", {"expression": "1"}))
        send("POST", f"/jobs/{paused}/pause")
        job(
            ("fault_note", {"text": "a"}),
            ("wait", {"seconds": _WAITS_SECONDS}),
            ("upgrade_book", {"text": "$0.output.text"}),
        )
        job(("upgrade_choose", {}), ("upgrade_book", {"text": "$0.output.text"}))
        lines = [
            {
                "custom_id": f"line {n}",
                "body": {
                    "plan": {
                        "calls": [
                            {"tool_name": "wait", "arguments": {"seconds": _WAITS_SECONDS if n % 2 else 1}},
                            {"tool_name": "upgrade_book", "arguments": {"text": f"{n}"}},
                        ]
                    }
                },
            }
            for n in range(6)
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        batch = send("POST", "/batches", content=content, headers={"Content-Type": "application/jsonl"})["id"]
        for text in ("What is 2 * 2?", "And 3 * 3?"):
            message = {"tenant_id": "default", "channel": "api", "from": {"external_id": "ann"}, "thread": "1"}
            send("POST", "/messages/inbound", json={**message, "content": {"text": text}})
        for job_id in (*ended, cancelled):
            eventually(lambda job_id=job_id: is_over(job_id), 120, what=f"{job_id} has ended")
        eventually(lambda: send("GET", "/elicitations")["items"], 120, what="a person is asked")
        eventually(
            lambda: send("GET", f"/batches/{batch}")["counts"]["completed"] == 3, 120, what="half the batch ends"
        )


def make(version: str) -> Path:
    """Run planq, fill its database, and write the dump of a release; return its file."""
    with server_folder() as servers, tempfile.TemporaryDirectory() as folder:
        postgres, valkey = TestPostgres(servers), EmbeddedValkey(Path(folder))
        postgres.start()
        valkey.start()
        try:
            url = postgres.create_migrated()
            env = {**SETTINGS, "FAULT_FOLDER": folder}
            stack = Stack(Path(folder), url, valkey.url, env=env, fresh=True)
            try:
                stack.start()
                fill(stack)
            finally:
                stack.end()
            command = [str(installed_binaries() / "pg_dump"), "--inserts", "--no-owner", url]
            text = subprocess.run(command, capture_output=True, check=True).stdout
        finally:
            valkey.stop()
            postgres.stop()
    FOLDER.mkdir(exist_ok=True)
    target = FOLDER / f"{version}.sql.gz"
    target.write_bytes(gzip.compress(text, mtime=0))
    return target


if __name__ == "__main__":
    sys.stdout.write(f"{make(sys.argv[1])}\n")
