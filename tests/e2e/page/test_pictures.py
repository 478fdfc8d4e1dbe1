"""What models make, on the page of its job: pictures in a bounded size, all else as files, and nothing that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from playwright.sync_api import Browser, expect

from planq.deploy.local.valkey import EmbeddedValkey
from tests.e2e.page.test_pages import stands
from tests.integration.llm.dialects import GOOGLE, KEY
from tests.integration.llm.wire import Reply, WireServer, wire_server
from tests.support.browser import Visitor, check, lacking
from tests.support.drawing_tools import png
from tests.support.lacking import require
from tests.support.pictures import base64_of
from tests.support.servers import TestPostgres
from tests.support.stack import Stack

PAINTER = replace(GOOGLE, model="google@studio:gemini-2.5-flash-image")
SQUARE = png(900, b"\xff\x00\x00")
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(2)</script></svg>"
FILES = [("image/png", SQUARE), ("image/svg+xml", SVG), ("text/html", b"<script>alert(3)</script>")]


@pytest.fixture(scope="module")
def model() -> Iterator[WireServer]:
    with wire_server() as running:
        yield running


@pytest.fixture(scope="module")
def stack(
    postgres: TestPostgres, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory, model: WireServer
) -> Iterator[Stack]:
    """API and workers whose model makes files."""
    require(lacking())
    url = postgres.create_migrated()
    servers = {"google@studio": {"base_url": model.url, "key": KEY}}
    env = {"PLANQ_MODEL": PAINTER.model, "PLANQ_MODEL_SERVERS": json.dumps(servers)}
    running = Stack(tmp_path_factory.mktemp("pictures"), url, valkey.url, env=env)
    running.start()
    yield running
    running.end()
    postgres.drop(url)


def test_pictures_are_shown_and_what_could_run_is_a_file(stack: Stack, browser: Browser, model: WireServer) -> None:
    reply = PAINTER.reply("Three files.", None)
    for media_type, data in FILES:
        made = {"inlineData": {"mimeType": media_type, "data": base64_of(data)}}
        reply["candidates"][0]["content"]["parts"].append(made)
    model.script(Reply(reply))
    answer = httpx.post(f"{stack.url}/jobs", json={"input": "Draw."}, timeout=60)
    assert answer.status_code == 202, answer.text
    job_id = answer.json()["id"]
    stands(stack, job_id, "completed")
    made = httpx.get(f"{stack.url}/jobs/{job_id}/artifacts", timeout=60).json()["items"]
    assert {(one["media_type"], one["bytes"]) for one in made} == {(kind, len(data)) for kind, data in FILES}

    visitor = Visitor(browser, stack.url)
    try:
        page = visitor.page
        page.goto(f"/ui/jobs/{job_id}")
        expect(page.locator("#answer")).to_contain_text("Three files.")
        shown = page.locator("#artifacts")
        expect(shown.locator("section.artifact")).to_have_count(3)
        expect(shown).to_contain_text(PAINTER.model)
        picture = shown.locator("img")
        expect(picture).to_have_count(1)
        picture.scroll_into_view_if_needed()
        expect(picture).to_have_js_property("naturalWidth", 900)
        box = picture.bounding_box()
        assert box is not None
        assert (round(box["width"]), round(box["height"])) == (420, 420)
        assert shown.locator("svg, script, iframe, object, embed").count() == 0
        check(visitor, 375)
        for link in shown.get_by_role("link", name="Save").all():
            file = page.request.get(link.get_attribute("href") or "")
            assert (file.status, file.headers["content-type"]) == (200, "application/octet-stream")
            assert file.headers["content-disposition"].startswith("attachment")
        assert visitor.complaints == []
    finally:
        visitor.close()
