"""What an answer lets a browser do: nothing, but for the page at `/docs`, which works in one."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from planq.api.__main__ import server_options
from tests.integration.api.conftest import Api, MakeApi
from tests.support.lacking import require

FIELDS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}


def guarded(response: httpx.Response) -> None:
    """See that an answer has every field once, and a policy that allows no script in itself and no frame."""
    assert {name: response.headers.get_list(name) for name in FIELDS} == {name: [FIELDS[name]] for name in FIELDS}
    (policy,) = response.headers.get_list("content-security-policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert (rules["default-src"], rules["script-src"], rules["frame-ancestors"]) == ("'none'", "'self'", "'none'")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("HEAD", "/healthz", 200),
        ("GET", "/jobs", 200),
        ("GET", "/docs", 200),
        ("GET", "/docs/start.js", 200),
        ("GET", "/docs/assets/swagger-ui-bundle.js", 200),
        ("GET", "/docs/assets/nothing", 404),
        ("GET", "/nothing", 404),
        ("DELETE", "/healthz", 405),
        ("POST", "/jobs", 422),
        ("GET", "/metrics", 200),
    ],
)
def test_every_answer_has_the_fields(api: Api, method: str, path: str, status: int) -> None:
    response = api.http.request(method, path, **({"json": {}} if method == "POST" else {}))
    assert response.status_code == status
    guarded(response)


def test_refusals_streams_and_what_is_no_request_have_them_too(make_api: MakeApi) -> None:
    api = make_api(server=server_options(), api_keys="one-key")
    guarded(api.http.get("/jobs"))
    guarded(api.http.get("/healthz", headers={"Host": "x", "Origin": "http://elsewhere"}))
    key = {"Authorization": "Bearer one-key"}
    with httpx.stream("GET", f"{api.url}/events", headers=key, timeout=30, trust_env=False) as response:
        guarded(response)
    with socket.create_connection(("127.0.0.1", api.port)) as connection:
        connection.sendall(b"\x00 what is this\r\n\r\n")
        told = b"".join(iter(lambda: connection.recv(65_536), b"")).lower()
    assert all(f"{name}: {value}".lower().encode() in told for name, value in FIELDS.items())
    assert b"content-security-policy: " in told


def test_the_page_works_in_a_browser(api: Api, tmp_path: Path) -> None:
    require(None if shutil.which("chromium") else "Chromium is not installed (Debian's package chromium)")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", "--dump-dom", f"{api.url}/docs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)

    assert "A durable backend for agentic jobs" in done.stdout, "the description was fetched and drawn"
    assert len(re.findall(r'class="opblock ', done.stdout)) > 20
    assert "Content Security Policy" not in done.stderr


def test_no_cache_keeps_what_a_tenant_is_answered(api: Api) -> None:
    """Of every path that is described, refusals and pages too."""
    job = api.submit()
    described = api.http.get("/openapi.json").json()["paths"]
    open_paths = {"/healthz", "/docs", "/openapi.json"}
    kept = []
    for path in [path for path, operations in described.items() if "get" in operations and path not in open_paths]:
        address = "/".join(job["id"] if part.startswith("{") else part for part in path.split("/"))
        query = "?follow=false" if path.endswith("/events") else ""
        with api.http.stream("GET", address + query) as answer:
            if answer.headers.get("cache-control") not in ("no-store", "private, no-cache"):
                kept.append(path)
    assert kept == []
    assert api.http.get(f"/jobs/{job['id']}").headers["cache-control"] == "no-store"
