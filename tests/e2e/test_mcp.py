"""Tools of MCP servers in a running planq: listed, planned over, called, and called again after their server died."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.test_main_job import plan, submit, wait_for
from tests.support.stack import ROOT, Stack, refused_start
from tests.support.waiting import eventually

MakeStack = Callable[..., Stack]
PROBE = ROOT / "tests" / "integration" / "tools" / "servers" / "probe.py"


def write_config(folder: Path, **servers: Any) -> str:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


def probe(folder: Path) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(PROBE)], "env": {"PROBE_FOLDER": str(folder)}}


def test_a_plan_joins_mcp_tools_and_python_tools(
    database_url: str, valkey_url: str, make_stack: MakeStack, tmp_path: Path
) -> None:
    stack = make_stack(
        database_url, valkey_url, env={"PLANQ_MCP_FILE": write_config(tmp_path, probe=probe(tmp_path))}
    )
    stack.start()

    def listed() -> dict[str, Any]:
        return {tool["name"]: tool for tool in httpx.get(f"{stack.url}/tools").json()["items"]}

    eventually(lambda: "probe_add" in listed(), 60, what="the server's tools are published")
    assert listed()["probe_add"]["effect"] == "read"
    chain = plan(
        ("probe_add", {"numbers": [2, 3]}),
        ("calculate", {"expression": "{{ $0.output.total }} * 2"}),
        ("probe_add", {"numbers": ["$0.output.total", 1]}),
    )
    job = wait_for(stack, submit(stack, plan=chain)["id"])
    assert [s["status"] for s in job["steps"]] == ["succeeded"] * 3, job
    first, doubled, last = (s["output"] for s in job["steps"])
    assert (first["total"], doubled["result"], last["total"]) == (5, 10, 6)

    worker = psutil.Process(stack.processes["io-1"].pid)
    servers = [child for child in worker.children(recursive=True) if str(PROBE) in child.cmdline()]
    assert servers
    for server in servers:
        server.kill()
    again = wait_for(stack, submit(stack, plan=chain)["id"])
    assert [s["status"] for s in again["steps"]] == ["succeeded"] * 3, again


def test_what_a_server_says_beside_its_output_is_kept_and_a_job_has_a_user(
    database_url: str, valkey_url: str, make_stack: MakeStack, tmp_path: Path
) -> None:
    odd = {"command": sys.executable, "args": [str(PROBE.with_name("odd.py"))]}
    stack = make_stack(database_url, valkey_url, env={"PLANQ_MCP_FILE": write_config(tmp_path, odd=odd)})
    stack.start()
    with httpx.Client(base_url=stack.url) as http:

        def listed() -> list[str]:
            return [tool["name"] for tool in http.get("/tools").json()["items"]]

        eventually(lambda: "odd_shown" in listed(), what="the server's tools are published")
        wanted = plan(
            ("odd_undeclared", {}),
            ("odd_picture", {}),
            ("update_user_metadata", {"metadata": {"n": "$0.output.n"}}),
            ("write_report", {"title": "n is {{ $0.output.n }}", "sections": [{"heading": "h", "content": "c"}]}),
        )
        job = wait_for(stack, submit(stack, plan=wanted, user="ada")["id"])
        first, picture, kept, report = (step["output"] for step in job["steps"])
        said = [step["content"] for step in job["steps"]]
        made = http.get(f"/jobs/{job['id']}/artifacts").json()["items"]
        picture_file, kept_report = [http.get(f"/artifacts/{one['artifact_id']}") for one in made]

    assert first == {"n": 1}, job
    assert said == ["said", None, None, None]
    assert picture["content"][0]["artifact_id"] == f"{job['id']}/1/content/0"
    assert (kept["user_id"], kept["metadata"]) == ("ada", {"n": 1})
    assert job["user"] == "ada"
    assert [(one["step_index"], one["type"], one["metadata"]["user_id"]) for one in made] == [
        (1, None, "ada"),
        (3, None, "ada"),
    ]
    assert (picture_file.content, picture_file.headers["content-type"]) == (b"hi", "image/png")
    assert kept_report.json() == report


def test_a_server_whose_tools_clash_or_are_malformed_keeps_no_worker_from_starting(
    database_url: str, valkey_url: str, make_stack: MakeStack, tmp_path: Path
) -> None:
    sloppy = {"command": sys.executable, "args": [str(PROBE.with_name("sloppy.py"))], "env": {"SLOPPY": "zero"}}
    config = write_config(tmp_path, http=sloppy, a=sloppy, a_b=sloppy)
    stack = make_stack(database_url, valkey_url, env={"PLANQ_MCP_FILE": config})
    stack.start()

    def left_out() -> list[str]:
        workers = httpx.get(f"{stack.url}/workers").json()["workers"]
        return sorted(sentence for worker in workers for sentence in worker["left_out"])

    eventually(left_out, 60, what="the worker names what it does not offer")
    clash, *zeros = sorted(left_out(), key=lambda sentence: "null character" in sentence)
    assert clash.startswith("mcp:http (tool 'fetch'): 'http_fetch' is the name of ")
    assert len(zeros) == 3
    tools = {tool["name"]: tool for tool in httpx.get(f"{stack.url}/tools").json()["items"]}
    assert {"a_b_c", "a_b_good", "http_good"} <= set(tools)
    page = httpx.get(f"{stack.url}/ui/workers", headers={"Accept": "text/html"}).text
    assert "Tools that it does not offer" in page
    job = wait_for(stack, submit(stack, plan=plan(("a_b_c", {}), ("http_good", {})))["id"])
    assert [step["output"] for step in job["steps"]] == [{"text": "yes"}] * 2, job


@pytest.mark.whole  # `integration/tools/test_mcp.py` tells why it stops
def test_a_required_server_that_cannot_be_reached_stops_the_worker(
    database_url: str, valkey_url: str, tmp_path: Path
) -> None:
    lost = {"command": "/no/such/program", "planq": {"required": True}}
    done = refused_start(
        *("-m", "planq.worker", "io"),
        DATABASE_URL=database_url,
        BROKER_URL=valkey_url,
        PLANQ_MCP_FILE=write_config(tmp_path, lost=lost),
    )
    assert done.returncode == 2, done.stderr
    assert "lost" in done.stderr.splitlines()[-1]
