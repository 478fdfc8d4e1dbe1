"""The Compose file: valid, safe by default, scalable, and made of the commands that `planq up` exercises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from deploy.cli.main import create_app
from shared.settings import Settings

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "planq"}


def test_it_satisfies_the_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]

    done = subprocess.run([*command, str(ROOT / "docker-compose.yml")], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_it_has_every_part() -> None:
    assert set(SERVICES) == {"postgres", "redis", "migrate", "api", "worker-io", "worker-cpu", "flower"}
    assert set(OURS) == {"migrate", "api", "worker-io", "worker-cpu", "flower"}


@pytest.mark.parametrize("name", sorted(OURS))
def test_each_command_is_one_that_planq_accepts(name: str) -> None:
    group = typer.main.get_command(create_app())
    command: list[str] = OURS[name]["command"]

    with group.make_context("planq", list(command)) as context:
        called, found, rest = group.resolve_command(context, list(command))  # type: ignore[attr-defined]
        with found.make_context(called, rest, parent=context) as parsed:
            assert parsed.info_name == OURS[name]["command"][0]  # and its arguments were accepted


@pytest.mark.parametrize("name", ["worker-io", "worker-cpu"])
def test_workers_can_be_scaled(name: str) -> None:
    assert "ports" not in SERVICES[name]
    assert "container_name" not in SERVICES[name]


def test_the_database_has_connections_for_sixteen_io_workers() -> None:
    connections = {
        "api": Settings.model_fields["database_connections"].default + 1,  # the pool, LISTEN
        "worker-io": 16 * (Settings.model_fields["database_connections"].default + 3 + 1),  # lane, lifecycle, LISTEN
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
        "worker-cpu",
    }


def test_no_secret_has_a_default_and_the_example_names_each() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    example = (ROOT / ".env.example").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text))

    assert required == {"POSTGRES_PASSWORD", "PLANQ_API_KEYS", "PLANQ_FLOWER_PASSWORD", "PLANQ_SECRET_KEYS"}
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
