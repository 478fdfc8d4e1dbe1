"""README and docs do not rot: settings, endpoints, fields, commands, examples and paths are those of the code."""

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
PAGES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}
EVERYTHING = "\n".join(PAGES.values())
OUTSIDE_OF_SETTINGS = {
    "PLANQ_DATA",
    "PLANQ_FLOWER_PORT",
    "PLANQ_FLOWER_PASSWORD",
    "PLANQ_URL",
    "PLANQ_API_KEY",
    "PLANQ_CASES",
}


def page(name: str) -> str:
    return PAGES[f"docs/{name}.md"]


def section(name: str, heading: str) -> str:
    """The text of a page under a heading, up to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", page(name), re.MULTILINE | re.DOTALL)
    assert found, f"docs/{name}.md has no section {heading!r}"
    return found[2]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, without the heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for n, row in enumerate(table) if not set(lines[n]) <= set("|- ") and not _is_head(lines, n)]


def _is_head(lines: list[str], n: int) -> bool:
    return n + 1 < len(lines) and set(lines[n + 1]) <= set("|- ")


def blocks(language: str, text: str) -> list[str]:
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
    table = {row[0]: row[1] for row in rows(page("settings"))}
    expected = {
        ", ".join(f"`{name}`" for name in environment_names(field)): shown(info.default)
        for field, info in Settings.model_fields.items()
    }

    assert table == expected


def test_every_variable_that_is_named_exists() -> None:
    known = {name for field in Settings.model_fields for name in environment_names(field)} | OUTSIDE_OF_SETTINGS

    assert set(re.findall(r"\bPLANQ_[A-Z_]*[A-Z]", EVERYTHING)) <= known


def test_the_table_of_endpoints_is_the_api() -> None:
    api = create_app(Settings(database_url="postgresql://none", broker_url="redis://none"))
    served = {
        (method, re.sub(r":\w+}", "}", path))
        for path, methods in api.openapi()["paths"].items()
        for method in (name.upper() for name in methods)
    }

    first_cells = " ".join(row[0] for row in rows(section("http-api", "Endpoints")))

    assert set(re.findall(r"`(GET|POST|PUT|DELETE) (/[^`]*)`", first_cells)) == served
    client = TestClient(api, base_url="http://127.0.0.1")
    assert [client.get(path).status_code for path in ("/docs", "/openapi.json")] == [200, 200]


def test_the_fields_of_requests_and_answers_are_those_of_the_schemas() -> None:
    text = section("http-api", "Fields of a job request")
    request = [row[0].strip("`") for row in rows(text)]
    sentence = " ".join(section("http-api", "Fields of a job").split())
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
    for first, *rest in rows(page("cli")):
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

    assert set(re.findall(r"(?:`|bin/|\$ )planq ([a-z-]+)", EVERYTHING)) <= known


def test_every_make_target_that_is_mentioned_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"(?:`|^    |\bfolder )make ([a-z]+)", EVERYTHING, re.MULTILINE)) <= targets


def test_the_examples_in_json_are_plans_and_an_mcp_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plan,), (servers,), (orchestration,) = (blocks("json", page(name)) for name in ("plans", "tools", "agents"))
    monkeypatch.setenv("FILES_TOKEN", "token")
    (tmp_path / "mcp.json").write_text(servers)

    assert isinstance(structural_errors(json.loads(plan)), Plan)
    assert [server.name for server in read_mcp_file(tmp_path / "mcp.json")] == ["files", "search"]
    assert violations(ORCHESTRATE_SCHEMA, json.loads(orchestration)) == []
    decoded = decode(json.loads(orchestration)["plan"])
    assert isinstance(decoded, OrchestrationPlan)
    assert isinstance(compile_orchestration(decoded, OrchestrateLimits()), Compiled)


def test_the_examples_of_a_tool_work(tmp_path: Path) -> None:
    code, (declaration,) = blocks("python", page("tools")), blocks("yaml", page("tools"))
    space: dict[str, Any] = {"__name__": "mypackage.prices"}
    exec(compile("\n".join(code), "docs/tools.md", "exec"), space)
    (tmp_path / "tools.yaml").write_text(declaration)

    options = options_of(space["stock_price"])

    assert options is not None
    assert options.effect == "read"
    assert make_tool(space["charge"]).definition.recovery == "find_out"
    assert read_tools_file(tmp_path / "tools.yaml")[0].function == "mypackage.prices:stock_price"
    assert yaml.safe_load(declaration)["tools"][0]["effect"] in {"pure", "read", "idempotent", "unsafe"}


def test_the_tool_and_the_agent_of_the_readme_fit_together() -> None:
    (code,), (document,) = blocks("python", PAGES["README.md"]), blocks("yaml", PAGES["README.md"])
    space: dict[str, Any] = {"__name__": "greetings"}
    exec(compile(code, "README.md", "exec"), space)
    agent = parse_agent(document)

    assert make_tool(space["greet"]).definition.effect == "pure"
    assert agent.tools is not None
    assert "greet" in document


def test_the_example_of_an_agent_is_that_of_the_samples_and_its_fields_are_those_of_documents() -> None:
    (example,) = blocks("yaml", page("agents"))
    named = {name for row in rows(section("agents", "The document")) for name in re.findall(r"`(\w+)`", row[0])}

    assert example == (ROOT / "deploy" / "samples" / "agents" / "extractor.yaml").read_text()
    assert parse_agent(example).output_mode() == "object"
    assert named <= {info.alias or name for name, info in AgentDocument.model_fields.items()} | {"system_prompt"}


def test_the_table_of_error_codes_is_the_tree_of_errors() -> None:
    def below(kind: type[PlanqError]) -> list[type[PlanqError]]:
        return [kind, *(deeper for child in kind.__subclasses__() for deeper in below(child))]

    ours = [kind for kind in below(PlanqError) if kind.__module__ == PlanqError.__module__]
    table = {row[0].strip("`"): row[2] for row in rows(page("errors"))}

    assert table == {kind.code: "yes" if kind.retryable else "no" for kind in ours}
    assert all(len(row) == 4 and row[1] and row[3] for row in rows(page("errors")))


def test_what_curl_sends_fits_the_api() -> None:
    sent = re.findall(
        r"curl -s http://127\.0\.0\.1:8000(/\S+) .*-d '([^']+)'", "\n".join(blocks("console", EVERYTHING))
    )
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
    for phrases, tool in rows(section("models", "The model `offline`")):
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


def test_the_readme_is_short() -> None:
    assert PAGES["README.md"].count("\n") <= 250


def test_every_path_that_is_named_exists() -> None:
    rooms = "api|worker|shared|deploy|tests|docs"
    named = {
        (name, path)
        for name, text in PAGES.items()
        for path in re.findall(rf"`((?:(?:{rooms})/[\w./-]*)|[\w-]+\.(?:toml|md|lock)|\.ci/run)`", text)
    }

    assert len(named) > 40
    assert [(name, path) for name, path in sorted(named) if not (ROOT / path).exists()] == []


def anchors(text: str) -> set[str]:
    """What a link may name in a page: its headings, as GitHub writes them, and its own anchors."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def test_every_link_leads_somewhere() -> None:
    broken = []
    for name, text in PAGES.items():
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
            path, _, anchor = link.partition("#")
            target = (ROOT / name).parent / path if path else ROOT / name
            if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
                broken.append(f"{name}: {link}")

    assert broken == []


def test_every_page_is_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[a-z-]+\.md)\)", PAGES["README.md"]))

    assert linked == {name for name in PAGES if name.startswith("docs/")}
