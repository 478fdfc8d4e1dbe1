"""What the environment may say: a value that cannot be is refused with the variable's name, all of them at once."""

from __future__ import annotations

import os
from urllib.parse import quote

import pytest
from pydantic import ValidationError

from planq.shared.platform.errors import Misconfigured
from planq.shared.settings.environment import REMOVED, load_settings, variables_of
from planq.shared.settings.settings import Settings

_OPTIONS = quote(
    "-cjit=off -cplan_cache_mode=force_generic_plan -cenable_seqscan=off -cenable_mergejoin=off "
    "-cDateStyle=ISO -cIntervalStyle=postgres -cTimeZone=UTC -cclient_encoding=UTF8 -cbytea_output=hex "
    "-cextra_float_digits=1 -cstandard_conforming_strings=on -cdefault_transaction_isolation=read\\ committed "
    "-csearch_path=planq",
    safe="",
)

IMPOSSIBLE = [
    ("PLANQ_MODEL", "gpt-4o", "openai:<model>"),
    ("PLANQ_MODEL", "", "offline"),
    ("OPENAI_API_KEY", "maximum", "at least 8 characters, found 7; leave it unset"),
    ("PLANQ_LOG_LEVEL", "loud", "DEBUG, INFO, WARNING, ERROR"),
    ("PLANQ_HEARTBEAT_SECONDS", "15", "less than PLANQ_LEASE_SECONDS"),
    ("PLANQ_HOST", "0.0.0.0", "PLANQ_API_KEYS"),
    ("PLANQ_API_KEYS", " , ", "separated by commas"),
    ("PLANQ_REMOTE_CONTROL", "halt", "shutdown, pool_grow"),
    ("PLANQ_API_KEYS", "schlüssel", "ASCII"),
    ("PLANQ_SECRET_KEYS", "c2hvcnQ=", "32 bytes in base64"),
    ("PLANQ_MCP_FILE", "", "the path of a file"),
    ("PLANQ_TOOLS_FILE", " ", "the path of a file"),
    ("PLANQ_RECORD", "", "the path of a file"),
    ("PLANQ_LEASE_SECONDS", "inf", "finite"),
    ("PLANQ_LEASE_SECONDS", "nan", "greater than 0|finite"),
    ("PLANQ_JOB_TIMEOUT_SECONDS", "1e300", "ten years"),
    ("PLANQ_MAX_WORKER_LOSSES", "3000000000", "at most 2,147,483,647"),
    ("OPENAI_BASE_URL", "localhost:11434", "http://"),
    ("PLANQ_MODEL_BASE_URL", "http://[::1", "http://"),
    ("PLANQ_HTTP_FETCH_ALLOW_HOSTS", "http://intranet/", "hosts alone"),
    ("PLANQ_WEB_SEARCH", "altavista", "searxng"),
    ("PLANQ_MODLE", "offline", "did you mean PLANQ_MODEL\\?"),
    ("PLANQ_APIKEYS", "k", "did you mean PLANQ_API_KEYS\\?"),
    ("planq_lease_second", "9", "did you mean PLANQ_LEASE_SECONDS\\?"),
    ("PLANQ_XYZZY", "1", "no such setting"),
]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {name for field in Settings.model_fields for name in variables_of(field)}
    for name in list(os.environ):
        if name.upper().startswith("PLANQ_") or name in ours:
            monkeypatch.delenv(name)


@pytest.mark.parametrize(("name", "value", "told"), IMPOSSIBLE)
def test_a_setting_that_cannot_be_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(Misconfigured, match=rf"^bad settings: {name}\b.*{told}"):
        load_settings()


def test_all_that_is_wrong_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PLANQ_MODEL", "x"), ("PLANQ_LOG_LEVEL", "y"), ("PLANQ_PROT", "1")):
        monkeypatch.setenv(name, value)

    with pytest.raises(Misconfigured, match=r"PLANQ_MODEL.*PLANQ_LOG_LEVEL.*PLANQ_PROT.*PLANQ_PORT"):
        load_settings()


@pytest.mark.parametrize("name", ["PLANQ_API_KEYS", "PLANQ_MODEL_BASE_URL", "PLANQ_DATABASE_CONNECTIONS"])
def test_what_may_be_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "hush hush")

    with pytest.raises(Misconfigured) as refused:
        load_settings()

    assert ("hush" in refused.value.message) == (name == "PLANQ_DATABASE_CONNECTIONS")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PLANQ_LOG_LEVEL", "debug"),
        ("PLANQ_MODEL", "cassette:/tmp/x.jsonl"),
        ("OPENAI_BASE_URL", ""),
        ("PLANQ_API_KEYS", ""),
        ("PLANQ_DATA", "/tmp"),
        ("PLANQ_FLOWER_HOST", "0.0.0.0"),
        # What Kubernetes tells every container about services called `planq…`.
        ("PLANQ_API_SERVICE_HOST", "10.0.0.1"),
        ("PLANQ_API_SERVICE_PORT_HTTP", "8000"),
        ("PLANQ_API_PORT", "tcp://10.0.0.1:8000"),
        ("PLANQ_API_PORT_8000_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_what_can_be_is_taken(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)

    assert load_settings().log_level in ("INFO", "DEBUG")


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_a_removed_setting_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")

    with pytest.raises(Misconfigured, match=rf"^bad settings: {name}: removed in 0\.2; (?:unset it|set )"):
        load_settings()
    assert not any(name in variables_of(field) for field in Settings.model_fields)


def test_a_removed_setting_of_models_has_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value that the message shows is read."""
    for name in ("PLANQ_MODEL_FIRST_TOKEN_SECONDS", "PLANQ_MODEL_TEMPERATURE"):
        monkeypatch.setenv("PLANQ_MODEL_SETTINGS", REMOVED[name].split("'")[1])

        assert load_settings().model_settings["*"].model_fields_set


def test_no_dump_of_the_settings_shows_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    master = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
    monkeypatch.setenv("PLANQ_SECRET_KEYS", master)
    monkeypatch.setenv("PLANQ_API_KEYS", "one-of-the-keys")

    settings = load_settings()

    assert master not in f"{settings!r} {settings.model_dump()} {settings.model_dump_json()}"
    assert "one-of-the-keys" not in repr(settings)
    assert {master, "one-of-the-keys"} <= settings.secrets
    assert [key.secret for key in settings.master_keys] == [b"\x01" * 32]


@pytest.mark.parametrize(
    ("host", "key", "is_good"),
    [
        ("127.0.0.1", "a", True),
        ("0.0.0.0", "a", False),
        ("0.0.0.0", "long-enough-0123,a", False),
        ("0.0.0.0", "0123456789abcde", False),
        ("0.0.0.0", "0123456789abcdef", True),
    ],
)
def test_a_key_that_can_be_guessed_is_refused_where_others_reach_the_api(
    monkeypatch: pytest.MonkeyPatch, host: str, key: str, is_good: bool
) -> None:
    monkeypatch.setenv("PLANQ_HOST", host)
    monkeypatch.setenv("PLANQ_API_KEYS", key)
    if is_good:
        assert load_settings().needs_keys
        return
    with pytest.raises(Misconfigured, match="PLANQ_API_KEYS: expected keys of at least 16 characters") as refused:
        load_settings()
    assert key not in refused.value.message.split()


def test_weights_of_tenants_are_numbers_by_their_ids() -> None:
    assert Settings(tenant_weights='{"acme": 3, "shop": 0.5}').tenant_weights == {"acme": 3.0, "shop": 0.5}


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ("acme=3", "found what is no JSON"),
        ("[3]", r"expected a JSON object \{\"tenant\": weight\}"),
        ('{"acme": 0}', "acme: expected a number more than 0 and at most 1000, found 0"),
        ('{"acme": true}', "acme: expected a number"),
        ('{"acme": 1001}', "acme: expected a number"),
        ('{"acme": 1, "acme": 2}', "found what is no JSON"),
    ],
)
def test_other_weights_are_refused_with_their_tenant(weights: str, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Settings(tenant_weights=weights)


@pytest.mark.parametrize("name", ["Shop", "1st", "pg_temp", "a;b", "a" * 64, ""])
def test_a_schema_has_the_name_of_one(name: str) -> None:
    with pytest.raises(ValidationError, match="expected the name of a schema"):
        Settings(database_schema=name)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgresql://h/d", f"postgresql://h/d?options={_OPTIONS}"),
        ("postgresql://h/d?port=1", f"postgresql://h/d?port=1&options={_OPTIONS}"),
        (
            "postgresql://h/d?options=-cwork_mem%3D8MB&port=1",
            f"postgresql://h/d?port=1&options=-cwork_mem%3D8MB%20{_OPTIONS}",
        ),
    ],
)
def test_connections_work_in_the_schema(given: str, expected: str) -> None:
    assert Settings(database_url=given).require_database() == expected
    assert Settings(database_url=given).require_server() == expected


def test_behind_a_pooler_no_option_is_asked_for_but_of_the_server_itself() -> None:
    settings = Settings(database_url="postgresql://pooler/d", listen_url="postgresql://server/d")

    assert settings.require_database() == "postgresql://pooler/d"
    assert settings.require_server() == f"postgresql://server/d?options={_OPTIONS}"
    assert (settings.pooled_schema, Settings().pooled_schema) == ("planq", None)
