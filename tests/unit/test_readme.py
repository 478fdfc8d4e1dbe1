"""The README does not rot: its settings, endpoints, fields, commands and examples are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import AliasChoices, BaseModel
from starlette.testclient import TestClient
from typer.main import get_command

from api.app import create_app
from api.routes.executions import ExecutionRequest
from api.schemas import JobDocument, JobRequest, LimitsRequest, StepDocument, UsageDocument, ValidationRequest
from deploy.cli.main import create_app as create_cli
from shared.domain.agents.document import AgentDocument, parse_agent
from shared.domain.errors import PlanqError
from shared.domain.model import Ask
from shared.domain.plan import Plan, structural_errors
from shared.domain.schemas import violations
from shared.domain.tool import ToolDefinition
from shared.settings import Settings
from tests.support.harness import make_tool
from worker.agents.orchestration.compiling import Compiled, compile_orchestration
from worker.agents.orchestration.limits import OrchestrateLimits
from worker.agents.orchestration.plan import OrchestrationPlan, decode
from worker.agents.orchestration.schema import INPUT_SCHEMA as ORCHESTRATE_SCHEMA
from worker.llm.offline import plan_offline
from worker.tools.declare import options_of
from worker.tools.mcp.config import read_mcp_file
from worker.tools.overrides import read_tools_file

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
OUTSIDE_OF_SETTINGS = {
    "PLANQ_DATA",
    "PLANQ_FLOWER_PORT",
    "PLANQ_FLOWER_PASSWORD",
    "PLANQ_URL",
    "PLANQ_API_KEY",
    "PLANQ_CASES",
}


def section(heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, f"README has no section {heading!r}"
    return found[2]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, without the heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for n, row in enumerate(table) if not set(lines[n]) <= set("|- ") and not _is_head(lines, n)]


def _is_head(lines: list[str], n: int) -> bool:
    return n + 1 < len(lines) and set(lines[n + 1]) <= set("|- ")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def shown(default: Any) -> str:
    """A default as the table writes it."""
    if default in ("", None):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def environment_names(field: str) -> list[str]:
    alias = Settings.model_fields[field].validation_alias
    if isinstance(alias, AliasChoices):
        return [str(choice) for choice in alias.choices]
    return [str(alias) if alias else f"PLANQ_{field.upper()}"]


def test_the_table_of_settings_is_the_settings() -> None:
    table = {row[0]: row[1] for row in rows(section("Settings"))}
    expected = {
        ", ".join(f"`{name}`" for name in environment_names(field)): shown(info.default)
        for field, info in Settings.model_fields.items()
    }

    assert table == expected


def test_every_variable_that_is_named_exists() -> None:
    known = {name for field in Settings.model_fields for name in environment_names(field)} | OUTSIDE_OF_SETTINGS

    assert set(re.findall(r"\bPLANQ_[A-Z_]*[A-Z]", README)) <= known


def test_the_table_of_endpoints_is_the_api() -> None:
    api = create_app(Settings(database_url="postgresql://none", broker_url="redis://none"))
    served = {
        (method, re.sub(r":\w+}", "}", path))
        for path, methods in api.openapi()["paths"].items()
        for method in (name.upper() for name in methods)
    }

    first_cells = " ".join(row[0] for row in rows(section("HTTP API"))[: len(served)])

    assert set(re.findall(r"`(GET|POST|PUT|DELETE) (/[^`]*)`", first_cells)) == served
    client = TestClient(api, base_url="http://127.0.0.1")
    assert [client.get(path).status_code for path in ("/docs", "/openapi.json")] == [200, 200]


def test_the_fields_of_requests_and_answers_are_those_of_the_schemas() -> None:
    text = section("HTTP API")
    request = [row[0].strip("`") for row in rows(text) if not row[0].startswith(("`GET", "`POST", "`PUT"))]
    sentence = " ".join(text[text.index("A job carries") :].split())
    job, _, step = sentence.partition("; a step ")

    assert request == [info.alias or name for name, info in JobRequest.model_fields.items()]
    assert set(LimitsRequest.model_fields) <= set(re.findall(r"\w+", text))
    assert set(re.findall(r"\w+", job)) >= set(JobDocument.model_fields) | set(UsageDocument.model_fields)
    named = re.findall(r"`([a-z_, ]+)`", step)[0].split(", ")
    assert named == list(StepDocument.model_fields)


def cli_commands() -> dict[str, Any]:
    """Every command by its words: `jobs`, `knowledge load`."""
    found: dict[str, Any] = {}
    for name, command in get_command(create_cli()).commands.items():  # type: ignore[attr-defined]
        for below, inner in getattr(command, "commands", {"": command}).items():
            found[f"{name} {below}".strip()] = inner
    return found


def test_the_table_of_commands_is_the_command_line_and_its_options_exist() -> None:
    known = cli_commands()
    named: set[str] = set()
    for first, *rest in rows(section("Command line")):
        commands = [
            max((name for name in known if f"{words} ".startswith(f"{name} ")), key=len)
            for words in re.findall(r"`planq ([^`]+)`", first)
        ]
        named |= set(commands)
        options = {option for name in commands for p in known[name].params for option in (*p.opts, *p.secondary_opts)}
        assert set(re.findall(r"(--[a-z-]+)", " ".join(rest))) <= options, first

    assert named == set(known)


def test_every_command_that_is_mentioned_anywhere_exists() -> None:
    known = {name.split()[0] for name in cli_commands()}

    assert set(re.findall(r"(?:`|bin/|\$ )planq ([a-z-]+)", README)) <= known


def test_every_make_target_that_is_mentioned_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"(?:`|^    |\bfolder )make ([a-z]+)", README, re.MULTILINE)) <= targets


def test_the_examples_in_json_are_plans_and_an_mcp_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, servers, orchestration = blocks("json")
    monkeypatch.setenv("FILES_TOKEN", "token")
    (tmp_path / "mcp.json").write_text(servers)

    assert isinstance(structural_errors(json.loads(plan)), Plan)
    assert [server.name for server in read_mcp_file(tmp_path / "mcp.json")] == ["files", "search"]
    assert violations(ORCHESTRATE_SCHEMA, json.loads(orchestration)) == []
    decoded = decode(json.loads(orchestration)["plan"])
    assert isinstance(decoded, OrchestrationPlan)
    assert isinstance(compile_orchestration(decoded, OrchestrateLimits()), Compiled)


def test_the_examples_of_a_tool_work(tmp_path: Path) -> None:
    code, (declaration, _) = blocks("python"), blocks("yaml")
    space: dict[str, Any] = {"__name__": "mypackage.prices"}
    exec(compile("\n".join(code), "README.md", "exec"), space)
    (tmp_path / "tools.yaml").write_text(declaration)

    options = options_of(space["stock_price"])

    assert options is not None
    assert options.effect == "read"
    assert make_tool(space["charge"]).definition.recovery == "find_out"
    assert read_tools_file(tmp_path / "tools.yaml")[0].function == "mypackage.prices:stock_price"
    assert yaml.safe_load(declaration)["tools"][0]["effect"] in {"pure", "read", "idempotent", "unsafe"}


def test_the_example_of_an_agent_is_that_of_the_samples_and_its_fields_are_those_of_documents() -> None:
    _, example = blocks("yaml")
    named = {name for row in rows(section("Agents")) for name in re.findall(r"`(\w+)`", row[0])}

    assert example == (ROOT / "deploy" / "samples" / "agents" / "extractor.yaml").read_text()
    assert parse_agent(example).output_mode() == "object"
    assert named <= {info.alias or name for name, info in AgentDocument.model_fields.items()} | {"system_prompt"}


def test_the_table_of_error_codes_is_the_tree_of_errors() -> None:
    def below(kind: type[PlanqError]) -> list[type[PlanqError]]:
        return [kind, *(deeper for child in kind.__subclasses__() for deeper in below(child))]

    ours = [kind for kind in below(PlanqError) if kind.__module__ == PlanqError.__module__]
    table = {row[0].strip("`"): row[2] for row in rows(section("Error codes"))}

    assert table == {kind.code: "yes" if kind.retryable else "no" for kind in ours}
    assert all(len(row) == 4 and row[1] and row[3] for row in rows(section("Error codes")))


def test_what_curl_sends_fits_the_api() -> None:
    sent = re.findall(r"curl -s http://127\.0\.0\.1:8000(/\S+) .*-d '([^']+)'", "\n".join(blocks("console")))
    schemas: dict[str, type[BaseModel]] = {
        "/jobs": JobRequest,
        "/plans/validate": ValidationRequest,
        "/agents/critic/executions": ExecutionRequest,
    }

    assert {path for path, _ in sent} == set(schemas)
    for path, body in sent:
        assert schemas[path].model_validate_json(body).model_fields_set


def test_what_the_offline_table_says_is_what_runs() -> None:
    names = ["calculate", "http_fetch", "json_query", "knowledge_search", "now", "wait", "write_report"]
    tools = [ToolDefinition(name=name) for name in names]
    sample = {"X": "2 + 3", "URL": "https://example.org/", "N": "5", "TOOL": "json_query", "{JSON}": '{"data": 1}'}
    said = 0
    for phrases, tool in rows(section("Models")):
        for phrase in re.findall(r"`([^`]+)`", phrases):
            text = re.sub(r"\{JSON\}|\b(?:X|URL|N|TOOL)\b", lambda found: sample[found[0]], phrase)
            text = text.replace("(titled T) ", 'titled "T" ')
            text = f"write a report {text}" if text.startswith(("about", "from it")) else text
            (call,) = plan_offline(Ask("job", f"search for z. {text}", "offline"), tools).tool_calls
            assert isinstance(call.arguments, dict)
            used = [one["tool_name"] for one in call.arguments["calls"]]
            assert used[-1] == (re.findall(r"`([a-z_]+)`", tool) or ["json_query"])[0], text
            said += 1

    assert said > 10


def test_every_folder_of_the_layout_exists() -> None:
    rooms = re.findall(r"`((?:api|shared|worker|deploy)/[\w./]*)`", section("Layout"))

    assert len(rooms) > 10
    assert [room for room in rooms if not (ROOT / room).exists()] == []
