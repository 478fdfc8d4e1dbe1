"""`planq knowledge` against PostgreSQL: load, load again, replace, search."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

from planq.deploy.cli.main import create_app

Planq = Callable[..., Result]


@pytest.fixture
def planq(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planq:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("PLANQ_DATA", str(tmp_path / "no-data"))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(create_app(), ["knowledge", *arguments])

    return run


@pytest.fixture
def book(tmp_path: Path) -> Path:
    folder = tmp_path / "book"
    (folder / "pages").mkdir(parents=True)
    (folder / "guide.md").write_text("# Guide\n\n## Durable execution\n\nNo finished step runs again.\n")
    (folder / "pages" / "leases.html").write_text("<title>Leases</title><p>A heartbeat keeps a lease alive.</p>")
    (folder / "data.bin").write_bytes(b"\x00\x01")
    return folder


def load(planq: Planq, *paths: Path | str) -> dict[str, Any]:
    result = planq("load", *map(str, paths), "--json")
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def search(planq: Planq, query: str, *options: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(planq("search", query, *options, "--json").stdout)["items"]
    return items


def test_a_folder_is_loaded_once_and_counted(planq: Planq, book: Path) -> None:
    first, second = load(planq, book), load(planq, book)

    assert first == {
        "loaded": [
            {"source": "guide.md", "title": "Guide", "passages": 1},
            {"source": "pages/leases.html", "title": "Leases", "passages": 1},
        ],
        "unchanged": [],
        "skipped": [{"source": "data.bin", "reason": "binary"}],
        "passages": 2,
    }
    assert second == first | {"loaded": [], "unchanged": ["guide.md", "pages/leases.html"], "passages": 0}


def test_what_was_loaded_is_found_with_its_place(planq: Planq, book: Path) -> None:
    load(planq, book)

    found = search(planq, "what about durable execution?")

    assert [(one["title"], one["source"]) for one in found] == [("Guide — Durable execution", "guide.md")]
    assert found[0]["text"] == "No finished step runs again."


def test_a_changed_document_replaces_its_passages_and_nothing_else(planq: Planq, book: Path) -> None:
    load(planq, book)
    (book / "guide.md").write_text("# Guide\n\nAbout sweepers.\n")

    assert [one["source"] for one in load(planq, book)["loaded"]] == ["guide.md"]
    assert search(planq, "durable execution") == []
    assert [one["source"] for one in search(planq, "sweepers")] == ["guide.md"]
    assert [one["source"] for one in search(planq, "heartbeat")] == ["pages/leases.html"]


def test_a_prefix_keeps_folders_of_the_same_names_apart(planq: Planq, book: Path) -> None:
    load(planq, book)
    load(planq, book, "--prefix", "v2/")

    assert [one["source"] for one in search(planq, "heartbeat")] == ["pages/leases.html", "v2/pages/leases.html"]


def test_people_get_a_sentence_and_every_skipped_file(planq: Planq, book: Path) -> None:
    result = planq("load", str(book))

    assert result.exit_code == 0
    assert result.stdout == "2 documents loaded (2 passages), 0 unchanged, 1 skipped\n"
    assert result.stderr == "skipped data.bin: binary\n"
    assert "A heartbeat keeps a lease alive." in planq("search", "lease").stdout


def test_nothing_loaded_and_nothing_found_end_with_1(planq: Planq, book: Path) -> None:
    assert planq("load", str(book / "data.bin")).exit_code == 1
    nothing = planq("search", "unheard")
    assert (nothing.exit_code, nothing.stdout) == (1, "")


def test_hostile_documents_are_stored_and_shown_as_text(planq: Planq, tmp_path: Path) -> None:
    name = "x'; DROP TABLE passages; --.md"
    (tmp_path / name).write_text("# [red]T[/red]\n\nescape \x1b[31m '); -- %(tenant_id)s {{ $0.output.x }}\n")

    assert load(planq, tmp_path / name)["loaded"][0]["source"] == name
    shown = planq("search", "escape")

    assert "[red]T[/red]" in shown.stdout
    assert "{{ $0.output.x }}" in shown.stdout
    assert "\x1b" not in shown.stdout


def test_a_database_without_the_schema_is_told_what_to_do(
    planq: Planq, empty_database_url: str, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_database_url)

    result = planq("load", str(book))

    assert result.exit_code == 2
    assert "planq migrate" in result.stderr


def test_without_a_database_it_says_to_start_planq(planq: Planq, book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL")

    result = planq("search", "x")

    assert result.exit_code == 2
    assert "start `planq up`" in result.stderr


def test_a_tenant_finds_its_own_documents_and_what_it_is_offered_of_the_others(
    planq: Planq, book: Path, database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        for tenant, config in (("acme", "{}"), ("narrow", '{"knowledge_prefixes": ["shared/"]}')):
            connection.execute("INSERT INTO tenants (id, config) VALUES (%s, %s)", (tenant, config))
    load(planq, book, "--tenant", "acme")
    load(planq, book / "guide.md", "--prefix", "shared/")
    load(planq, book / "guide.md", "--prefix", "other/")

    def found(tenant: str) -> set[str]:
        return {one["source"] for one in search(planq, "durable execution", "--tenant", tenant)}

    assert found("acme") == {"guide.md", "shared/guide.md", "other/guide.md"}
    assert found("narrow") == {"shared/guide.md"}
    assert found("default") == {"shared/guide.md", "other/guide.md"}


def test_a_tenant_that_is_not_there_is_refused(planq: Planq, book: Path) -> None:
    result = planq("load", str(book), "--tenant", "nobody")

    assert result.exit_code != 0
    assert "there is no tenant 'nobody'" in result.stderr


def test_passages_for_all_tenants_are_kept_in_order(planq: Planq, tmp_path: Path, database_url: str) -> None:
    (tmp_path / "long.txt").write_text("\n\n".join(f"paragraph {n} " + "word " * 150 for n in range(5)))

    load(planq, tmp_path / "long.txt")

    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT tenant_id, position, body FROM passages ORDER BY position").fetchall()
    assert [(tenant, position) for tenant, position, _ in rows] == [("", n) for n in range(5)]
    assert all(f"paragraph {n} " in rows[n][2] for n in range(5))
