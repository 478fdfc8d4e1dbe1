"""The Compose file: valid, safe by default, scalable, and made of the commands that `planq up` exercises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
import typer
import yaml

from planq.deploy.cli.main import create_app
from planq.deploy.local.valkey import installed_binary
from planq.shared.settings.settings import Settings
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "planq"}


def test_it_satisfies_the_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]

    done = subprocess.run([*command, str(ROOT / "docker-compose.yml")], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_it_has_every_part() -> None:
    assert set(SERVICES) == {
        "postgres",
        "redis",
        "migrate",
        "api",
        "worker-io",
        "worker-io-bulk",
        "worker-cpu",
        "flower",
    }
    assert set(OURS) == {"migrate", "api", "worker-io", "worker-io-bulk", "worker-cpu", "flower"}


@pytest.mark.parametrize("name", sorted(OURS))
def test_each_command_is_one_that_planq_accepts(name: str) -> None:
    group = typer.main.get_command(create_app())
    command: list[str] = OURS[name]["command"]

    with group.make_context("planq", list(command)) as context:
        called, found, rest = group.resolve_command(context, list(command))  # type: ignore[attr-defined]
        with found.make_context(called, rest, parent=context) as parsed:
            assert parsed.info_name == OURS[name]["command"][0]  # and its arguments were accepted


@pytest.mark.parametrize("name", ["worker-io", "worker-io-bulk", "worker-cpu"])
def test_workers_can_be_scaled(name: str) -> None:
    assert "ports" not in SERVICES[name]
    assert "container_name" not in SERVICES[name]


def test_the_database_has_connections_for_sixteen_io_workers() -> None:
    connections = {
        "api": Settings.model_fields["database_connections"].default + 1,  # statements, LISTEN
        "worker-io": 16 * (Settings.model_fields["database_connections"].default + 3 + 1),  # steps, lifecycle, LISTEN
        "worker-cpu": 2 * Settings.model_fields["cpu_concurrency"].default + 3 + 1,  # two a process
    }
    options = SERVICES["postgres"]["command"]

    assert options[0] == "postgres"
    allowed = [int(option.partition("=")[2]) for option in options if option.startswith("max_connections=")]
    assert allowed[0] > sum(connections.values()) + len(SERVICES)  # health checks, migrations


def test_whatever_is_published_is_published_to_this_machine_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert len(published) == 2
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_everything_that_serves_has_a_health_check() -> None:
    assert {name for name, service in SERVICES.items() if "healthcheck" in service} == {
        "postgres",
        "redis",
        "api",
        "flower",
        "worker-io",
        "worker-io-bulk",
        "worker-cpu",
    }


def test_no_secret_has_a_default_and_the_example_names_each() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    example = (ROOT / ".env.example").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text))

    assert required == {
        *("POSTGRES_PASSWORD", "BROKER_PASSWORD", "PLANQ_API_KEYS", "PLANQ_FLOWER_PASSWORD", "PLANQ_SECRET_KEYS"),
    }
    for name in required:
        assert re.search(rf"^{name}=$", example, re.MULTILINE), name
    for name in set(re.findall(r"\$\{(\w+):-", text)):
        assert name in example, name


def test_the_image_runs_as_somebody_who_is_not_root_and_starts_planq() -> None:
    final_stage = (ROOT / "deploy" / "Dockerfile").read_text().rpartition("\nFROM ")[2]

    assert re.search(r"^USER planq$", final_stage, re.MULTILINE)
    assert 'ENTRYPOINT ["planq"]' in final_stage


def test_whatever_the_image_copies_exists() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE)
        for source in line.split()[:-1]
    ]

    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []


WORKERS = {
    *("POSTGRES_PASSWORD", "BROKER_PASSWORD", "PLANQ_SECRET_KEYS"),
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"),
}
SECRETS = {
    "postgres": {"POSTGRES_PASSWORD"},
    "redis": {"BROKER_PASSWORD"},
    "migrate": {"POSTGRES_PASSWORD"},
    "api": {"POSTGRES_PASSWORD", "BROKER_PASSWORD", "PLANQ_SECRET_KEYS", "PLANQ_API_KEYS"},
    "flower": {"BROKER_PASSWORD", "PLANQ_FLOWER_PASSWORD"},
    "worker-io": WORKERS,
    "worker-io-bulk": WORKERS,
    "worker-cpu": WORKERS,
}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_each_service_has_its_own_secrets_and_no_others(name: str) -> None:
    given = set(re.findall(r"\$\{(\w+)", str(SERVICES[name].get("environment", {}))))
    assert {one for one in given if re.search("KEY|PASSWORD", one)} == SECRETS[name]
    assert not re.search(r"\$\{\w*(KEY|PASSWORD)", str(SERVICES[name].get("command", "")))


def test_the_broker_asks_for_its_password(tmp_path: Path) -> None:
    """Its command is carried out as it stands, by the embedded server's binary."""
    script = str(SERVICES["redis"]["command"][2]).replace("$$", "$")
    socket = tmp_path / "s"
    # The image's entry point only changes the user.
    script = script.replace(
        "docker-entrypoint.sh valkey-server -", f"{installed_binary()} - --port 0 --dir {tmp_path}"
    )
    script = script.replace("--appendonly yes", f"--appendonly yes --unixsocket {socket}")
    secrets = dict.fromkeys(("BROKER_PASSWORD", "REDISCLI_AUTH"), "letters0123")
    env = {"PATH": os.environ["PATH"], **secrets}
    process = subprocess.Popen(["sh", "-c", script], env=env, stdout=subprocess.DEVNULL)
    try:
        eventually(socket.exists, 60, what="it listens")
        with redis.Redis(unix_socket_path=str(socket)) as nobody, pytest.raises(redis.AuthenticationError):
            nobody.ping()
        with redis.Redis(unix_socket_path=str(socket), decode_responses=True, password="letters0123") as planq:
            assert planq.ping()
            assert set(planq.config_get("proto-max-bulk-len").values()) == {"8388608"}
        for told in ("cmdline", "environ"):
            assert b"letters0123" not in Path(f"/proc/{process.pid}/{told}").read_bytes()
    finally:
        process.terminate()
        process.wait(60)


def test_every_image_is_of_one_version() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    images = [service["image"] for service in SERVICES.values() if service["image"] != "planq"]
    images += re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert len(images) == 4
    assert [image for image in images if not re.search(r":\d+\.\d+(\.\d+)?(-|$)", image)] == []
