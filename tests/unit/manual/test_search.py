"""What people ask the manual, in their words: the section that answers it is found at the first or second place."""

from __future__ import annotations

import pytest

from planq.shared.platform.manual import manual_pages, search_pages, sections_of, terms

ASKED = {
    "where are the logs": "docs/operations.md#logs",
    "which events are there": "docs/streams.md#which-events-there-are",
    "what should I alert on": "docs/operations.md#what-to-alert-on",
    "how long may a loop run": "docs/loops.md#how-long-a-loop-may-run",
    "change settings in containers": "docs/containers.md#change-settings-in-containers",
    "admin commands in docker": "docs/containers.md#run-admin-commands-in-containers",
    "roll back a release": "docs/operations.md#roll-back-a-release",
    "delete a job": "docs/operations.md#delete-one-job",
    "call it from python": "docs/client.md",
    "kubernetes": "docs/containers.md#kubernetes",
    "does it run on windows": "docs/containers.md#macos-and-windows",
    "macos": "docs/containers.md#macos-and-windows",
    "job stuck in queued": "docs/troubleshooting.md#a-job-is-stuck-in-queued",
    "stuck in planning": "docs/troubleshooting.md#a-job-is-stuck-in-planning",
    "stuck in executing": "docs/troubleshooting.md#a-job-is-stuck-in-executing",
    "stuck in responding": "docs/troubleshooting.md#a-job-is-stuck-in-responding",
    "completed although a step failed": "docs/troubleshooting.md#a-job-is-completed-though-a-step-failed",
    "error code worker_lost": "docs/troubleshooting.md#a-job-failed",
    "use rabbitmq": "docs/operations.md#rabbitmq",
    "paging through a list": "docs/http-api.md#paging-through-lists",
    "limit costs": "docs/costs.md",
    "backup the database": "docs/operations.md#back-up-and-restore",
    "verify the signature of a webhook": "docs/webhooks.md#verify-it",
    "rotate api keys": "docs/tenants.md#rotate-an-api-key",
    "approve a tool before it is called": "docs/questions.md#who-asks",
}


@pytest.mark.parametrize("words", ASKED)
def test_what_people_ask_is_found_at_the_first_or_second_place(words: str) -> None:
    assert ASKED[words] in [one.place for one in search_pages(manual_pages(), words, limit=2)]


def test_a_section_ends_at_the_next_heading_and_code_has_none() -> None:
    page = "# Page\n\nintro\n\n## One `x`\n\n```\n# no heading\n```\n\n## Two\n\nlast\n"

    assert [(one.heading, one.anchor, one.text) for one in sections_of("docs/page.md", page)] == [
        ("Page", "page", "intro"),
        ("One x", "one-x", "```\n# no heading\n```"),
        ("Two", "two", "last"),
    ]


def test_a_heading_counts_more_than_a_text_and_a_rare_word_more_than_a_usual_one() -> None:
    pages = {
        "docs/a.md": "# A\n\n## Leases\n\nOf workers.\n\n## Workers\n\nWorkers hold leases and workers run.\n",
        "docs/b.md": "# B\n\n## Workers\n\nworkers workers workers\n\n## Other\n\nzebra workers\n",
    }

    assert search_pages(pages, "lease")[0].place == "docs/a.md#leases"
    assert search_pages(pages, "workers zebra")[0].place == "docs/b.md#other"
    assert search_pages(pages, "nothing like it") == []


def test_the_forms_of_a_word_are_one_word() -> None:
    assert terms("The queries failed; retries of queued steps") == terms("query fail retry queue step")


def test_an_excerpt_is_the_part_that_fits_without_its_marks() -> None:
    page = "# Page\n\nSomething else.\n\nA [lease](x.md#y) ends, and `planq` goes on.\n"

    (found,) = search_pages({"docs/page.md": page}, "lease")

    assert (found.title, found.excerpt) == ("Page", "A lease ends, and planq goes on.")
