"""`planq tenants`, `planq keys` and `planq secrets` against PostgreSQL: before any API answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

from planq.deploy.cli.main import create_app
from planq.shared.subjects.tenants.keys import is_key

Planq = Callable[..., Result]


@pytest.fixture
def planq(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planq:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("PLANQ_DATA", str(tmp_path / "no-data"))

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(create_app(), list(arguments), input=stdin)

    return run


def document(result: Result) -> dict[str, Any]:
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(result: Result) -> str:
    assert result.exit_code == 1, result.stdout
    return " ".join(result.stderr.split())


def test_a_tenant_is_created_configured_disabled_and_enabled(planq: Planq, tmp_path: Path) -> None:
    file = tmp_path / "acme.json"
    file.write_text('{"model": "offline", "max_tool_steps": 7}')

    made = document(planq("tenants", "create", "acme", "--name", "Acme", "--config", str(file), "--json"))
    assert (made["id"], made["name"], made["is_disabled"]) == ("acme", "Acme", False)
    assert refused(planq("tenants", "create", "acme")) == (
        "planq: the tenant 'acme' already exists; change it, or choose another id"
    )
    changed = document(
        planq("tenants", "set", "acme", "max_tool_steps=5", "model=", 'tools=["web_*"]', "prompt=Be kind.", "--json")
    )
    assert changed["config"] == {"max_tool_steps": 5, "tools": ["web_*"], "prompt": "Be kind."}
    whole = planq("tenants", "set", "acme", "--config", "-", "--json", stdin='{"debounce_ms": 5}')
    assert document(whole)["config"] == {"debounce_ms": 5}
    assert document(planq("tenants", "disable", "acme", "--json"))["is_disabled"]
    assert planq("tenants", "list").stdout.split() == ["acme", "disabled", "Acme", "default", "enabled"]
    assert planq("tenants", "enable", "acme").stdout == "tenant acme is enabled\n"


def test_a_tenant_has_the_limits_of_the_server_until_it_has_its_own(planq: Planq) -> None:
    planq("tenants", "create", "acme")
    shown = document(planq("tenants", "show", "acme", "--json"))
    assert (shown["config"], shown["limits"]["max_tool_steps"]) == ({}, 10)

    planq("tenants", "set", "acme", 'limits={"max_tool_steps": 3}')
    limits = document(planq("tenants", "show", "acme", "--json"))["limits"]
    assert (limits["max_rounds"], limits["max_tool_steps"]) == (20, 3)
    assert '"max_tool_steps": 3' in planq("tenants", "show", "acme").stdout


def test_bad_tenants_are_refused_with_what_was_expected(planq: Planq, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    wrong = [
        (("create", "Acme"), "lower-case letters, digits and hyphens"),
        (("create", "a", "--config", str(tmp_path / "none.json")), "expected a file with a JSON object"),
        (("create", "a", "--config", str(tmp_path / "list.json")), "config: Input should be a valid dictionary"),
        (("set", "default", "--config", str(tmp_path / "list.json"), "a=1"), "a valid dictionary"),
        (("set", "default", "fame=1"), "fame: Extra inputs are not permitted"),
        (("set", "default", "fame"), "expected FIELD=VALUE"),
        (("set", "default", "max_tool_steps=0"), "max_tool_steps: Input should be greater than or equal to 1"),
        (("set", "default", 'limits={"fame": 1}'), "unknown limit"),
        (("set", "nobody", "max_tool_steps=1"), "there is no tenant 'nobody'"),
        (("show", "nobody"), "there is no tenant 'nobody'"),
        (("disable", "default"), "cannot be disabled"),
    ]
    for arguments, told in wrong:
        assert told in refused(planq("tenants", *arguments))


def test_a_key_is_shown_once_listed_by_its_beginning_and_revoked(planq: Planq) -> None:
    planq("tenants", "create", "acme")
    made = planq("keys", "create", "acme", "--name", "ci", "--scope", "jobs", "--days", "30")
    text = made.stdout.strip()
    assert is_key(text)
    assert "it is shown this once" in made.stderr
    second = document(planq("keys", "create", "acme", "--json"))
    assert (second["scopes"], second["expires_at"], is_key(second["key"])) == (["jobs", "messages"], None, True)

    first, _ = document(planq("keys", "list", "acme", "--json"))["items"]
    assert (first["name"], first["scopes"], first["last_used_at"]) == ("ci", ["jobs"], None)
    assert text.startswith(first["prefix"])
    assert first["expires_at"] is not None
    assert planq("keys", "revoke", "acme", first["id"]).stdout == f"key {first['id']} is revoked\n"
    shown = planq("keys", "list", "acme").stdout
    assert "revoked" in shown
    assert text not in shown + json.dumps(first)


def test_bad_keys_are_refused(planq: Planq) -> None:
    planq("tenants", "create", "acme")
    other = document(planq("keys", "create", "acme", "--json"))["id"]
    for arguments, told in [
        (("create", "nobody"), "there is no tenant 'nobody'"),
        (("create", "acme", "--scope", "root"), "known scopes are jobs, messages, approve, admin"),
        (("list", "nobody"), "there is no tenant 'nobody'"),
        (("revoke", "acme", str(uuid4())), "there is no key"),
        (("revoke", "default", other), "of the tenant 'default'"),
    ]:
        assert told in refused(planq("keys", *arguments))


def test_a_secret_is_read_from_standard_input_and_never_shown(planq: Planq, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
    missing = planq("secrets", "set", "default", "openai_api_key", stdin="sk-hidden")
    assert (missing.exit_code, "PLANQ_SECRET_KEYS is not set" in missing.stderr) == (2, True)

    monkeypatch.setenv("PLANQ_SECRET_KEYS", old)
    stored = planq("secrets", "set", "default", "openai_api_key", stdin="sk-hidden\n")
    assert stored.stdout == "secret openai_api_key of the tenant default is stored\n"
    assert "expected a name" in refused(planq("secrets", "set", "default", "a/password", stdin="sk-of-nobody"))
    assert "no tenant 'nobody'" in refused(planq("secrets", "set", "nobody", "openai_api_key", stdin="sk-of-nobody"))

    monkeypatch.setenv("PLANQ_SECRET_KEYS", new)
    lost = planq("secrets", "rotate")
    assert (lost.exit_code, lost.stdout) == (1, "0 sealed again\n")
    assert "cannot be opened: default/openai_api_key" in " ".join(lost.stderr.split())
    monkeypatch.setenv("PLANQ_SECRET_KEYS", f"{new},{old}")
    assert document(planq("secrets", "rotate", "--json")) == {"resealed": 1, "unopened": []}
    listed = planq("secrets", "list", "default", "--json")
    assert [one["name"] for one in document(listed)["items"]] == ["openai_api_key"]
    assert "sk-hidden" not in stored.stdout + lost.stderr + listed.stdout + planq("secrets", "list", "default").stdout
    assert planq("secrets", "remove", "default", "openai_api_key").exit_code == 0
    assert document(planq("secrets", "list", "default", "--json")) == {"items": []}
