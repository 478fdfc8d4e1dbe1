"""A tool makes a picture: kept, told to models, fetched whole, by range and by the command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.e2e.test_main_job import plan, submit, wait_for
from tests.support.drawing_tools import png
from tests.support.stack import Stack
from tests.support.waiting import eventually

MakeStack = Callable[..., Stack]


def test_a_picture_is_fetched_whole_and_in_parts(
    database_url: str, valkey_url: str, make_stack: MakeStack, tmp_path: Path
) -> None:
    env = {"PLANQ_TOOLS": "tests.support.drawing_tools", "PLANQ_MAX_OUTPUT_BYTES": "1000000"}
    stack = make_stack(database_url, valkey_url, env=env)
    stack.start()
    picture = png(300, b"\xff\x00\x00")
    calls = plan(
        ("draw_square", {"width": 300}),
        ("print_square", {"text": "{{ $0.output.colour }}"}),
        ("draw_square", {"width": 600}),
    )
    with httpx.Client(base_url=stack.url) as http:
        eventually(
            lambda: {"draw_square", "print_square"} <= {one["name"] for one in http.get("/tools").json()["items"]},
            60,
            what="the tools are published",
        )
        job = wait_for(stack, submit(stack, plan=calls)["id"])
        drawn, printed, refused = job["steps"]
        made = http.get(f"/jobs/{job['id']}/artifacts").json()["items"]
        whole = http.get("/artifacts/squares/300")
        part = http.get("/artifacts/squares/300", headers={"Range": f"bytes=8-{len(picture) - 2}"})
        text = http.get("/artifacts/prints/red")

    assert (drawn["output"], drawn["content"]) == ({"width": 300, "colour": "red"}, "A red square, 300 wide."), job
    assert printed["output"]["artifact"] == {"media_type": "text/plain; charset=utf-8", "bytes": 300_000}, job
    assert printed["output"]["artifact_id"] == "prints/red"
    assert "1000000 are kept" in refused["error"]["message"], "a picture of 1.08 MB"
    assert [(one["artifact_id"], one["version"], one["media_type"], one["bytes"]) for one in made] == [
        ("squares/300", 1, "image/png", len(picture)),
        ("prints/red", 1, "text/plain; charset=utf-8", 300_000),
    ]
    assert (whole.status_code, whole.content, whole.headers["content-type"]) == (200, picture, "image/png")
    assert (part.status_code, part.content) == (206, picture[8:-1])
    assert text.text == "red" * 100_000

    target = tmp_path / "square.png"
    command = [sys.executable, "-m", "planq.deploy.cli.main", "artifact", "squares/300", "--to", str(target)]
    saved = subprocess.run(
        [*command, "--url", stack.url], env=stack.env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (saved.returncode, target.read_bytes()) == (0, picture), saved.stderr
