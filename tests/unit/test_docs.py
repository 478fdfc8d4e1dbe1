"""README and docs do not rot: settings, endpoints, fields, commands, examples and paths are those of the code."""

from __future__ import annotations

import ast
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from starlette.testclient import TestClient

from planq.api.app import create_api
from planq.api.compat.executions import ExecutionRequest
from planq.api.http import bounds
from planq.api.http.exchange import MAX_BODY_PARTS, MAX_DEFECTS
from planq.api.intake.messages import InboundRequest
from planq.api.schemas import MAX_METADATA_BYTES, JobRequest, ValidationRequest
from planq.shared.agentic.agents.document import AgentDocument, parse_agent
from planq.shared.agentic.models.exchange import Ask
from planq.shared.agentic.orchestration.compiling import Compiled, compile_orchestration
from planq.shared.agentic.orchestration.plan import OrchestrationPlan
from planq.shared.agentic.orchestration.request import OrchestrateLimits
from planq.shared.agentic.orchestration.validation import read_plan
from planq.shared.agentic.plan.document import Plan, structural_errors
from planq.shared.agentic.rounds.guard import GuardLimits
from planq.shared.agentic.schema.schemas import violations
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.scoping import PARAMETER_OVERRIDE, SUSPICIOUS_ARGUMENTS
from planq.shared.kernel.limits import INLINE_OUTPUT_BYTES, Limits
from planq.shared.platform.errors import PlanqError
from planq.shared.platform.sql_files import sql_files
from planq.shared.settings.environment import variables_of
from planq.shared.settings.settings import Settings
from planq.worker.agents.orchestration.schema import ORCHESTRATE_INPUT as ORCHESTRATE_SCHEMA
from planq.worker.models.offline import plan_offline
from planq.worker.tools.declare import options_of
from planq.worker.tools.mcp.config import read_mcp_file
from planq.worker.tools.registry import read_tools_file
from tests.support import http_reference, reference
from tests.support.harness import make_tool

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
    "PLANQ_COMMIT",
}

REAL_PLAN_BYTES: int = runpy.run_path(bounds.__file__)["MAX_PLAN_BYTES"]
"""As it is written: the tests of the API change the attribute in their process."""


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


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_reference_is_what_the_code_gives(name: str) -> None:
    text = PAGES[f"docs/{name}"]

    assert reference.BLOCK.search(text)
    assert text == reference.renewed(text), "the code has changed: run `make docs`"


def test_a_default_that_a_factory_makes_is_shown() -> None:
    rows = dict(line.split(" | ", 2)[:2] for line in reference.settings().splitlines() if line.startswith("| `PLANQ"))

    made = [name for name, info in Settings.model_fields.items() if info.default_factory is not None]
    assert made
    for name in made:
        shown = ", ".join(f"`{one}`" for one in variables_of(name))
        assert rows[f"| {shown}"] == f"`{Settings.model_fields[name].get_default(call_default_factory=True)}`"
    assert rows["| `PLANQ_MODEL_PRICES`"] == "`{}`"
    assert "PydanticUndefined" not in EVERYTHING


def test_every_setting_and_every_error_is_explained() -> None:
    silent = [field for field, info in Settings.model_fields.items() if not info.description]
    explained = {kind.code for kind in reference.raised_errors()}

    assert silent == []
    assert explained == {kind.code for kind in below(PlanqError)}


def below(kind: type[PlanqError]) -> list[type[PlanqError]]:
    found = [kind, *(deeper for child in kind.__subclasses__() for deeper in below(child))]
    return [one for one in found if one.__module__ == PlanqError.__module__]


def test_every_variable_that_is_named_exists() -> None:
    known = {name for field in Settings.model_fields for name in variables_of(field)} | OUTSIDE_OF_SETTINGS

    assert set(re.findall(r"\bPLANQ_[A-Z_]*[A-Z]", EVERYTHING)) <= known


def test_the_api_serves_its_description() -> None:
    api = create_api(Settings(database_url="postgresql://none", broker_url="redis://none"))
    client = TestClient(api, base_url="http://127.0.0.1")

    assert [client.get(path).status_code for path in ("/docs", "/openapi.json")] == [200, 200]


def test_every_command_that_is_mentioned_anywhere_exists() -> None:
    known = {name.split()[0] for name in reference.cli_commands()}

    assert set(re.findall(r"(?:`|bin/|\$ )planq ([a-z][a-z-]*)", EVERYTHING)) <= known


def test_every_option_that_is_mentioned_is_one_of_its_command() -> None:
    commands, wrong, seen = reference.cli_commands(), [], 0
    for name, text in PAGES.items():
        for rest in re.findall(r"(?:`|^    |^\$ |[($] ?)planq ([a-z][^`\n|]*)", text, re.MULTILINE):
            line = re.split(r" #|\$\(", rest)[0]
            words = line.split()
            called = next((n for n in (" ".join(words[:2]), words[0]) if n in commands), None)
            if called is None:
                continue
            known = {option for one in commands[called].params for option in (*one.opts, *one.secondary_opts)} | {
                "--help"
            }
            for option in re.findall(r"(?<=\s)--[a-z][\w-]*", line):
                seen += 1
                wrong += [] if option in known else [f"{name}: planq {called} {option}"]

    assert seen > 60
    assert wrong == []


def test_every_metric_to_alert_on_exists() -> None:
    made = (ROOT / "api" / "metrics" / "exposition.py").read_text("utf-8")
    named = set(re.findall(r"\b(planq_[a-z_]+)", section("operations", "What to alert on")))

    assert len(named) > 5
    assert [
        name for name in sorted(named) if f'"{name.removesuffix("_total").removesuffix("_bucket")}' not in made
    ] == []


def test_every_make_target_that_is_mentioned_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"(?:`|^    |\bfolder )make ([a-z]+)", EVERYTHING, re.MULTILINE)) <= targets


def test_the_examples_in_json_are_plans_and_an_mcp_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plan,), (servers, of_planq), (orchestration,) = (
        blocks("json", page(name)) for name in ("plans", "tools", "agents")
    )
    monkeypatch.setenv("FILES_TOKEN", "token")
    monkeypatch.setenv("PLANQ_API_KEY", "key")
    (tmp_path / "mcp.json").write_text(servers)
    (tmp_path / "planq.json").write_text(of_planq)

    assert isinstance(structural_errors(json.loads(plan)), Plan)
    assert [server.name for server in read_mcp_file(tmp_path / "mcp.json")] == ["files", "search"]
    assert [server.name for server in read_mcp_file(tmp_path / "planq.json")] == ["planq"]
    assert violations(ORCHESTRATE_SCHEMA, json.loads(orchestration)) == []
    decoded = read_plan(json.loads(orchestration)["plan"])
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


def test_the_tool_and_the_agent_of_the_tutorial_fit_together() -> None:
    (code,) = [one for one in blocks("python", page("tutorial")) if one.startswith("# greetings.py")]
    (document,) = blocks("yaml", page("tutorial"))
    space: dict[str, Any] = {"__name__": "greetings"}
    exec(compile(code, "docs/tutorial.md", "exec"), space)
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


def test_what_curl_sends_fits_the_api() -> None:
    sent = re.findall(
        r"curl -s http://127\.0\.0\.1:8000(/\S+) .*-d '([^']+)'", "\n".join(blocks("console", EVERYTHING))
    )
    schemas: dict[str, type[BaseModel]] = {
        "/jobs": JobRequest,
        "/plans/validate": ValidationRequest,
        "/agents/critic/executions": ExecutionRequest,
        "/messages/inbound": InboundRequest,
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
    assert PAGES["README.md"].count("\n") <= 130


def test_the_tree_of_folders_has_each_folder_with_code_and_none_that_is_gone() -> None:
    path, drawn = list[str](), set[str]()
    for line in blocks("text", section("architecture", "The folders"))[0].splitlines():
        drawing = re.fullmatch(r"((?:  )*)([\w-]+)/(?: +\S.*)?", line)
        assert drawing, line
        path[len(drawing[1]) // 2 :] = [drawing[2]]
        drawn.add("/".join(path))
    levels = dict.fromkeys(("api", "deploy", "shared", "worker"), 3) | {"tests": 2}
    files = {one for room in levels for kind in ("*.py", "*.sql") for one in (ROOT / room).rglob(kind)}
    folders = {one.relative_to(ROOT).parts[:-1] for one in files}
    with_code = {
        "/".join(one[: levels[one[0]]]) for one in folders if not {"routes", "commands", "page"} & set(one[2:])
    }

    assert with_code - drawn == set(), "draw these in docs/architecture.md"
    assert {one for one in drawn if not (ROOT / one).is_dir()} == set()


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
    reached, look = set[str](), ["README.md"]
    while look:
        name = look.pop()
        for link in re.findall(r"\]\(([\w./-]+\.md)(?:#[^)]*)?\)", PAGES.get(name, "")):
            path = str(((ROOT / name).parent / link).resolve().relative_to(ROOT))
            look += [path] if path not in reached else []
            reached.add(path)

    assert {name for name in PAGES if name.startswith("docs/")} <= reached


def test_every_page_begins_with_links_to_its_neighbours() -> None:
    alone = [
        name
        for name, text in PAGES.items()
        if name.startswith("docs/") and not re.search(r"\]\([\w/.-]+\.md", text.partition("\n## ")[0])
    ]

    assert alone == []


def test_every_route_stands_on_one_page() -> None:
    told = [
        found for name in http_reference.PAGES for found in re.findall(r"^### `(.*)`$", PAGES[f"docs/{name}"], re.M)
    ]

    assert sorted(told) == sorted(f"{method} {path}" for method, path, _ in http_reference.routes())
    assert set(http_reference.places().values()) <= {"api", *http_reference.RESOURCES}


def test_every_kind_of_event_is_explained() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in sql_files())
    code = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "worker").rglob("*.py")))
    appended = re.findall(r"planq_append_event\([^,]+,[^,]+,\s*'(\w+)'", sources)
    kinds = {*appended, *re.findall(r"store\.note\(\w+, \"(\w+)\"", code), PARAMETER_OVERRIDE, SUSPICIOUS_ARGUMENTS}
    kinds -= {"job_"}
    told = {
        name for row in rows(section("streams", "Which events there are")) for name in re.findall(r"`(\w+)`", row[0])
    }

    assert len(kinds) > 15
    assert kinds - told == set()


def test_every_code_of_a_refusal_is_explained() -> None:
    code = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "api").rglob("*.py")))
    refused = re.findall(r"(?:HttpRefusal|_refused)\(\s*(?:[\w.]+,\s*)?\"(\w+)\"", code)
    sources = "\n".join(path.read_text("utf-8") for path in sql_files())
    lines = re.findall(r"'code', '(\w+)'", sources)
    told = {name for row in rows(page("errors")) for name in re.findall(r"`(\w+)`", row[0])}

    assert len(refused) > 10
    assert {*refused, *lines} - told == set()


def test_a_default_that_stands_beside_its_setting_is_that_of_the_code() -> None:
    defaults = {name: info.default for field, info in Settings.model_fields.items() for name in variables_of(field)}
    told = [
        (name, float(number.replace(" ", "")))
        for text in PAGES.values()
        for name, number in re.findall(r"`(PLANQ_[A-Z_]+)` \((\d[\d ]*)(?: s| days)?[,;)]", text)
    ]

    assert told
    assert [(name, number) for name, number in told if defaults[name] != number] == []


def spaced(number: float) -> str:
    return f"{number:,.0f}".replace(",", " ")


def test_limits_in_prose_are_those_of_the_code() -> None:
    limits, guard = Limits(), GuardLimits()
    set_to = {field: info.default for field, info in Settings.model_fields.items()}
    week = set_to["human_wait_seconds"] == 7 * 86_400
    said = {
        "loops": [
            f"`loop` has {limits.loop_timeout_seconds:g} s (15 minutes) over all its rounds",
            f"`react` and `guided` {limits.plan_timeout_seconds:g} s",
            f"at most {limits.max_rounds} rounds",
            f"lower the server's number ({limits.max_rounds})",
        ],
        "plans": [
            f"| {limits.max_tool_steps}, {spaced(limits.max_plan_steps)} |",
            f"durable waits not counted | {limits.plan_timeout_seconds:g} s |",
            f"{limits.step_timeout_seconds:g} s at most |",
            f"| {spaced(bounds.MAX_INPUT_BYTES // 1000)} kB, 100 kB, {MAX_METADATA_BYTES >> 10} KiB, "
            f"{REAL_PLAN_BYTES >> 20} MiB with {spaced(MAX_BODY_PARTS)} values and keys |",
            f"| 1 MiB, {set_to['max_output_bytes'] >> 20} MiB |",
            f"({guard.consecutive_limit}), `window_size` ({guard.window_size}) and `window_freq_limit` "
            f"({guard.window_freq_limit})",
        ],
        "http-api": [
            f"the first {MAX_DEFECTS},",
            f"{set_to['max_body_bytes'] >> 20} MiB (`PLANQ_MAX_BODY_BYTES`)",
            f"and {REAL_PLAN_BYTES >> 20} MiB where a plan",
            f"more than {spaced(MAX_BODY_PARTS)} values and keys",
        ],
        "batches": [f"{bounds.MAX_BATCH_BYTES >> 20} MiB and {spaced(bounds.MAX_BATCH_LINES)} lines"],
        "architecture": [f"over {INLINE_OUTPUT_BYTES >> 10} KiB"],
        "questions": ["`PLANQ_HUMAN_WAIT_SECONDS` (a week;" if week else "no week"],
        "messages": [f"at most {MAX_METADATA_BYTES >> 10} KiB"],
    }

    assert [(name, one) for name, all_of in said.items() for one in all_of if one not in page(name)] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_block_of_code_can_be_read(name: str) -> None:
    text = PAGES[name]
    for block in blocks("yaml", text):
        yaml.safe_load(block)
    for block in blocks("json", text):
        for document in [block] if block.startswith("{\n") or block.count("\n{") == 0 else block.splitlines():
            json.loads(document.replace("…", "..."))
    for block in blocks("python", text):
        compile(block, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


RUN = {
    "console": "integration/cli/test_printed_examples.py",
    "python": {
        "docs/tools.md": "unit/test_docs.py",
        "docs/tutorial.md": "integration/cli/test_printed_examples.py",
        "docs/testing.md": "unit/testing/test_page.py",
        "docs/loops.md": "integration/cli/test_printed_programs.py",
        "docs/questions.md": "integration/cli/test_printed_programs.py",
        "docs/client.md": "integration/cli/test_printed_programs.py",
        "README.md": "integration/cli/test_printed_programs.py",
    },
    "yaml": {
        "docs/loops.md": "integration/engine/test_loop_recipes.py",
        "docs/agents.md": "unit/test_docs.py",
        "docs/tools.md": "unit/test_docs.py",
        "docs/tutorial.md": "unit/test_docs.py",
    },
    "json": {
        "docs/plans.md": "unit/test_docs.py",
        "docs/tools.md": "unit/test_docs.py",
        "docs/agents.md": "unit/test_docs.py",
        "docs/batches.md": "integration/cli/test_printed_programs.py",
    },
    "sql": "integration/cli/test_printed_programs.py",
}
"""Which test runs the examples of a language, in all pages or in each."""

NOT_RUN = {
    ("docs/testing.md", "toml"): "two lines of somebody's pyproject.toml",
    ("docs/loops.md", "toml"): "two lines of somebody's pyproject.toml",
    ("docs/containers.md", "yaml"): "for a Kubernetes of one's own",
    (
        "docs/plans.md",
        "yaml",
    ): "needs agents of one's own; its form is read by `test_every_block_of_code_can_be_read`",
}


def test_every_example_is_run_or_somebody_says_why_not() -> None:
    found = {
        (name, language)
        for name, text in PAGES.items()
        for language in re.findall(r"^```(\w+)$", text, re.MULTILINE)
        if language != "text"
    }
    tested = {
        (name, language): of if isinstance(of, str) else of.get(name)
        for name, language in found
        if (of := RUN.get(language)) is not None
    }
    without = {one for one in found if tested.get(one) is None}

    assert without == set(NOT_RUN)
    assert [path for path in tested.values() if path and not (ROOT / "tests" / path).exists()] == []


def test_no_page_holds_the_marks_of_a_merge() -> None:
    marks = re.compile(r"^(<{7}|>{7}|={7}$|\|{7})", re.MULTILINE)

    assert [name for name, text in PAGES.items() if marks.search(text)] == []


@pytest.mark.parametrize("peer", ["celery", "langgraph", "dbos"])
def test_the_comparison_is_of_the_versions_that_the_benchmark_runs(peer: str) -> None:
    pinned = (ROOT / "tests/bench/peers/requirements.in").read_text("utf-8")
    version = re.search(rf"^{peer}(?:\[.*\])?==(\S+)$", pinned, re.MULTILINE)
    named = {"celery": "Celery", "langgraph": "LangGraph", "dbos": "DBOS Transact for Python"}[peer]
    assert version
    assert f"{named} {version[1]}" in " ".join(page("comparison").split())


def test_the_comparison_says_no_spans_only_while_none_are_recorded() -> None:
    locked = "opentelemetry-sdk" in (ROOT / "requirements.lock").read_text("utf-8")
    assert locked != ("OpenTelemetry spans" in section("comparison", "What peers have and planq lacks"))
