"""The house rules that no linter knows: sizes, sleeps, citations, names on the wire, the drawn tree of errors."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from planq import api, shared, worker
from planq.shared.broker import names
from planq.shared.platform import errors

pytestmark = pytest.mark.whole  # `make check` runs these

ROOT = Path(__file__).parents[2]
MAX_FUNCTION = 100

# One line an exception, with its reason.
LONG_FUNCTIONS: dict[str, str] = {}


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_functions_keep_their_size() -> None:
    found = []
    for path in sources("api", "worker", "shared", "tests"):
        name = str(path.relative_to(ROOT))
        if name not in LONG_FUNCTIONS:
            long = [f for f in functions(ast.parse(path.read_text(encoding="utf-8"))) if size(f) > MAX_FUNCTION]
            found += [f"{name}:{f.lineno}: {f.name} has {size(f)} lines" for f in long]
    assert found == []


def test_every_module_says_what_lives_in_it() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources("api", "worker", "shared")
        if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_tests_wait_on_conditions_and_never_sleep() -> None:
    slept = []
    # These run in workers, and look until they may go on, or take their time.
    tools = {ROOT / "tests/faults" / name for name in ("tools.py", "reporting.py")}
    folders = "unit", "integration", "conformance", "e2e", "faults", "interleavings", "model"
    assert all(any(sources(f"tests/{folder}")) for folder in folders), "a folder has another name by now"
    for path in set(sources(*(f"tests/{folder}" for folder in folders))) - tools:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep", "asyncio.sleep"):
                waits = [ast.unparse(a) for a in node.args]
                if waits != ["0"]:
                    slept.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert slept == []


def committed(*patterns: str) -> Iterator[Path]:
    apart = {".venv", ".planq", ".planq-test-envs", ".git"}
    for pattern in patterns:
        yield from (path for path in ROOT.rglob(pattern) if not apart & set(path.relative_to(ROOT).parts))


def test_nothing_committed_names_this_machine() -> None:
    places = [f"{re.escape(str(folder))}/" for folder in {ROOT, Path.home()} if len(folder.parts) > 1]
    here = re.compile(rf"(?<![\w/])(?:{'|'.join(places)})") if places else None
    named = [
        str(path.relative_to(ROOT))
        for path in committed("*.py", "*.md", "*.toml", "*.lock", "*.yml", "*.yaml", "Makefile", "Dockerfile", "run")
        if here is not None and here.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert named == []


OUTSIDE = re.compile(
    r"[Rr]eadings(?:\.md|,? rows?| \d)|\b[Rr]ows? \d+\b|\b[Ss]pecifications? S\d|\bS[0124]\b|\bS3(?:'s|\)| name)"
    r"|\b[Ii]ssues? #?\d+\b(?! of)|\b(?:design|traps|facts|style|readings)\.md|\b(?:anchors|specs)/|\.\./shared"
)
"""How texts cite what lies outside; trackers of other projects are cited by name: celery/celery #6220."""

CITATION = re.compile(r"decisions(?:\.md)?, (D\d+(?:(?:, | and | to )D\d+)*)")


def prose(text: str, *, is_python: bool) -> str:
    """The part of a text that is for people: of Python its comments and docstrings, else all of it."""
    if not is_python:
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = (token.string for token in tokens if token.type == tokenize.COMMENT)
    strings = (
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
    return "\n".join((*comments, *strings))


def found_in_prose(pattern: re.Pattern[str], *files: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Every match in what people read, with its file; only files that hold the pattern at all are parsed."""
    for path in committed(*files):
        text = path.read_text(encoding="utf-8")
        if path != Path(__file__) and pattern.search(text):
            for match in pattern.finditer(prose(text, is_python=path.suffix == ".py")):
                yield str(path.relative_to(ROOT)), match


@pytest.mark.parametrize(
    "text",
    [
        *("(readings row 23)", "Readings 11, 12.", "rows 2 and 4", "Specification S1.", "S0's wrapper", "(S3)"),
        *("Issue 2, section 6.", "see design.md", "anchors/celery.md", "../shared/readings.md"),
    ],
)
def test_a_citation_is_known_by_its_form(text: str) -> None:
    assert OUTSIDE.search(text)


def test_no_text_cites_what_lies_outside_the_repository() -> None:
    files = ("*.py", "*.md", "*.sql", "*.toml", "*.yml", "*.yaml", "Makefile", "Dockerfile", "run")

    assert [f"{path}: {match[0]}" for path, match in found_in_prose(OUTSIDE, *files)] == []


def test_every_decision_that_is_cited_exists() -> None:
    known = set(re.findall(r"^### (D\d+)\.", (ROOT / "docs" / "decisions.md").read_text("utf-8"), re.MULTILINE))
    cited = [
        (path, decision)
        for path, match in found_in_prose(CITATION, "*.py", "*.md", "*.sql")
        for decision in re.findall(r"D\d+", match[1])
    ]

    assert len(cited) > 40
    assert [(path, decision) for path, decision in cited if decision not in known] == []


def test_dependencies_are_pinned_without_an_address() -> None:
    addressed = [
        str(path.relative_to(ROOT))
        for path in committed("*.lock", "Dockerfile", "requirements*")
        if re.search(r"https?://", path.read_text(encoding="utf-8"))
    ]
    assert addressed == []


def leaves(base: type[errors.PlanqError]) -> Iterator[type[errors.PlanqError]]:
    for child in base.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from leaves(child)


@pytest.mark.parametrize("name", [names.PLAN, names.STEP, names.RESPOND])
def test_names_on_the_wire_begin_with_the_project_and_follow_no_module(name: str) -> None:
    assert re.fullmatch(r"planq\.[a-z]+\.[a-z]+\.v\d+", name)


def test_the_packages_are_ours_alone() -> None:
    for package in (api, worker, shared):
        assert Path(package.__file__ or "").resolve().parents[1] == ROOT
        assert set(packages_distributions().get(package.__name__, ["planq"])) == {"planq"}


HTTP_CLIENTS = {
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
    "requests",
    "aiohttp",
    "urllib3",
    "http.client",
    "urllib.request",
}
MAKES_CLIENTS = {"AsyncClient", "Client", "AsyncHTTPTransport", "HTTPTransport", "request", "get", "post", "stream"}
CALLS_OUT = {
    "worker/egress": "the one place where HTTP clients for the outside are made",
    "shared/client": "the client of planq's own API, used by other people's programs",
    "api/cli/connection.py": "the command line's connection to planq's own API",
    "deploy/local/up.py": "asks planq's own API whether it serves",
    "deploy/cli/telegram.py": "hands updates to planq's own API",
}


def clients_made(path: Path) -> Iterator[str]:
    """Yield the imports of a file with which it could send HTTP itself; types alone are none."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in set(ast.walk(tree)) - for_types:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in HTTP_CLIENTS)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {one.name for one in node.names}
            full = {f"{node.module}.{name}" for name in names}
            yield from full & HTTP_CLIENTS
            if node.module in {"httpx", "httpx2"}:
                yield from (f"{node.module}.{name}" for name in names & MAKES_CLIENTS)
            elif node.module in HTTP_CLIENTS:
                yield node.module


def test_all_http_goes_out_through_one_package() -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources("api", "worker", "shared", "deploy")
        if not str(path.relative_to(ROOT)).startswith(tuple(CALLS_OUT))
        for name in clients_made(path)
    ]
    assert found == []
    assert [place for place in CALLS_OUT if not (ROOT / place).exists()] == []


OWN_DRAWS = {"Random", "SystemRandom"}


def draws_of_all(text: str) -> Iterator[str]:
    """What a module uses of the random numbers that the whole process shares."""
    tree = ast.parse(text)
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "random"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            yield from (alias.name for alias in node.names if alias.name not in OWN_DRAWS)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            yield from {node.attr} - OWN_DRAWS


def test_random_numbers_come_from_a_generator_of_their_own() -> None:
    """A thread that draws from those of the process disturbs whoever seeds them: Hypothesis, and users' tools."""
    assert list(draws_of_all("import random\nrandom.seed(1)\nrandom.Random(1).random()")) == ["seed"]
    assert list(draws_of_all("from random import SystemRandom, choice\ndef f(random):\n  random.random()")) == [
        "choice"
    ]
    found = [
        f"{path.relative_to(ROOT)}: random.{name}"
        for path in sources("api", "worker", "shared", "deploy", "tests")
        for name in draws_of_all(path.read_text(encoding="utf-8"))
    ]
    assert found == []
