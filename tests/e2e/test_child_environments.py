"""Which variables each process of a running `planq up` has, as the kernel tells: none has another's secrets."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.e2e.test_first_start import PATIENCE, PLANQ, ROOT, bare
from tests.support.ports import free_port
from tests.support.waiting import eventually

PROBE = ROOT / "tests" / "integration" / "tools" / "servers" / "probe.py"

SECRETS = {
    "OPENAI_API_KEY": "sk-of-a-provider-0123456789",
    "ANTHROPIC_API_KEY": "sk-of-another-0123456789",
    "PLANQ_WEB_SEARCH_API_KEY": "of-a-search-0123456789",
    "PLANQ_SECRET_KEYS": base64.b64encode(b"m" * 32).decode(),
    "PLANQ_API_KEYS": "of-callers-0123456789abcdef",
    "PLANQ_FLOWER_PASSWORD": "of-flower-0123456789",
    "GITHUB_TOKEN": "of-a-tool-0123456789",
    "TOKEN_OF_PROBE": "of-an-mcp-server-0123456789",
}

WORKERS = {
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PLANQ_WEB_SEARCH_API_KEY", "PLANQ_SECRET_KEYS"),
    *("GITHUB_TOKEN", "TOKEN_OF_PROBE"),
}
HAS = {
    "postgres": set(),
    "valkey-server": set(),
    "flower": {"PLANQ_FLOWER_PASSWORD"},
    "api": {"PLANQ_SECRET_KEYS", "PLANQ_API_KEYS"},
    "worker": WORKERS,
    "probe": {"TOKEN_OF_PROBE"},
    "resource": WORKERS,
}
"""Whose secrets each process has: its own, under whatever name. Python's resource tracker is a worker's."""


def kind_of(process: psutil.Process) -> str:
    words = " ".join(process.cmdline()[1:])
    for kind, mark in (
        ("probe", "probe.py"),
        ("flower", "planq.shared.broker.monitor"),
        ("worker", "-m planq.worker"),
        ("api", "-m planq.api"),
        ("resource", "resource_tracker"),
    ):
        if mark in words:
            return kind
    return process.name()


def environments(up: psutil.Process) -> dict[str, list[dict[str, str]]]:
    """The environment of each process below, by its kind; those of a kind that is not known count as well."""
    found: dict[str, list[dict[str, str]]] = {}
    for process in up.children(recursive=True):
        try:
            text = Path(f"/proc/{process.pid}/environ").read_bytes().decode()
            found.setdefault(kind_of(process), []).append(
                dict(line.partition("=")[::2] for line in text.split("\0") if "=" in line)
            )
        except (OSError, psutil.Error, IndexError):
            continue  # it has just ended
    return found


def test_each_process_of_planq_up_has_its_own_secrets_and_no_others(tmp_path: Path) -> None:
    data, output, servers = tmp_path / "data", tmp_path / "output.txt", tmp_path / "mcp.json"
    probe = {"command": sys.executable, "args": [str(PROBE)]}
    env = {"PROBE_FOLDER": str(tmp_path), "TOKEN": "${TOKEN_OF_PROBE}"}
    servers.write_text(json.dumps({"mcpServers": {"probe": {**probe, "env": env}}}))
    ports = ["--port", str(free_port()), "--flower", "--flower-port", str(free_port())]
    with output.open("wb") as out:
        up = psutil.Popen(
            [*PLANQ, "up", *ports],
            cwd=ROOT,
            env={**bare(data), **SECRETS, "PLANQ_MCP_FILE": str(servers)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: "planq is up" in output.read_text(), PATIENCE, what="planq is up")
        eventually(
            lambda: environments(up).keys() >= HAS.keys() - {"resource"}, 60, what="every kind of process runs"
        )
        found = environments(up)
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(PATIENCE) == 0

    assert found.keys() <= HAS.keys(), "a process of a kind that this table does not know"
    for kind, several in found.items():
        for variables in several:
            told = "\n".join(variables.values())
            assert {name for name, secret in SECRETS.items() if secret in told} == HAS[kind], kind
    for kind in ("postgres", "valkey-server"):
        names = {name for variables in found[kind] for name in variables}
        assert {name for name in names if name.startswith(("PLANQ", "DATABASE", "BROKER", "PYTHON"))} == set()
    assert os.environ.keys().isdisjoint({"TOKEN_OF_PROBE"}), "the test's own environment has none of this"
