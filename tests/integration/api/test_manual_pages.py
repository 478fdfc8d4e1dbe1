"""The manual on pages: every page, link and picture of it is there, and a search finds what people ask."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urldefrag, urljoin

import httpx

from planq.shared.platform.manual import manual_pages
from tests.integration.api.conftest import Api


def test_every_link_and_picture_of_every_page_leads_somewhere(api: Api) -> None:
    with httpx.Client(base_url=api.url, timeout=60, trust_env=False) as browser:
        contents = browser.get("/ui/manual").text
        names = set(re.findall(r'href="/ui/manual/([\w-]+)"', contents))
        assert len(names) == len(manual_pages())
        texts: dict[str, str] = {}
        for name in sorted(names):
            answer = browser.get(f"/ui/manual/{name}")
            assert (answer.status_code, answer.text.count("<h1 id=")) == (200, 1), name
            texts[f"/ui/manual/{name}"] = answer.text
        for place, text in texts.items():
            article = text.partition("<article")[2]
            for link in re.findall(r'href="([^"]+)"', article):
                target, anchor = urldefrag(urljoin(place, unescape(link)))
                if target.startswith(("https:", "http:")):
                    continue
                assert target in texts, (place, link)
                assert not anchor or f'id="{anchor}"' in texts[target], (place, link)
            for picture in re.findall(r'src="([^"]+)"', article):
                answer = browser.get(urljoin(place, picture))
                assert answer.status_code == 200, (place, picture)
                assert answer.headers["content-type"] in ("image/svg+xml", "image/png")


def test_a_search_leads_to_the_place_and_says_where_nothing_fits(api: Api) -> None:
    with httpx.Client(base_url=api.url, timeout=60, trust_env=False) as browser:
        found = browser.get("/ui/manual", params={"q": "job stuck in queued"}).text
        assert 'href="/ui/manual/troubleshooting#a-job-is-stuck-in-queued"' in found
        nothing = browser.get("/ui/manual", params={"q": "<xyzzy>"}).text
        assert "Nothing fits these words" in nothing
        assert "<xyzzy>" not in nothing
        for missing in ("/ui/manual/passwd", "/ui/manual/..%2fsecrets", "/ui/manual/pictures/passwd"):
            assert browser.get(missing).status_code == 404, missing
