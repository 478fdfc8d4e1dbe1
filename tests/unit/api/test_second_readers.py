"""Bodies have one reader: whoever decodes what a request brings does so through it, and long ones off the loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

API = Path(__file__).parents[3] / "api"

READERS = {
    "json": {"deps.py", "quick.py"},
    "body": {"deps.py", "page/route.py", "mcp/server.py", "agents/routes.py", "channels/webhook.py"},
    "form": {"page/route.py"},
    "stream": {"batches/routes.py"},
}
"""The modules that may take the bytes of a request themselves. `json` of a `StrictRequest` is the common way."""

DECODERS = {
    ("orjson", "loads"): {"page/route.py"},  # of an answer that the API itself has made
    ("json", "loads"): {
        "cli/runtime.py",  # a file of this machine
        "batches/commands.py",  # the command line's own
        "jobs/page/job.py",  # a stored answer, and 64 kB of a stored artifact
        "jobs/page/forking.py",  # one key of a text that was decoded before, off the loop
    },
    ("", "decode"): {"cli/inputs.py", "jobs/commands/submit.py"},  # the command line's own
}

OFF_LOOP = {"json_in", "content_of", "config_change", "lines_at", "laid_out", "differences", "changes_between"}
"""What computes for as long as a field of a form is."""
INSIDE = {"page/fields.py"}
"""Modules whose functions are called off the loop as a whole."""
COMPUTED = {
    "jobs/page/forking.py": {"_changes", "_defects"},
    "batches/page.py": {"_number"},
    "page/trees.py": {"changes_between"},
    "tenants/page.py": {"config_change", "_value"},
    "actions/page.py": {"_sent"},  # of 4,000 characters at most
}


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(API.rglob("*.py")):
        yield path.relative_to(API).as_posix(), ast.parse(path.read_text("utf-8"))


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_strict(tree: ast.Module) -> bool:
    """True where the routes of a module are those that read bodies strictly."""
    return any(isinstance(one.func, ast.Name) and one.func.id == "strict_router" for one in _calls(tree))


def test_no_module_takes_the_bytes_of_a_request_by_a_way_of_its_own() -> None:
    found = set()
    for name, tree in _modules():
        for call in _calls(tree):
            target = call.func
            if not isinstance(target, ast.Attribute) or target.attr not in READERS:
                continue
            owner = target.value
            is_request = isinstance(owner, ast.Name) and owner.id in ("request", "read", "asked")
            is_made = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "Request"
            if (is_request or is_made) and name not in READERS[target.attr]:
                if target.attr in ("json", "body") and _is_strict(tree):
                    continue
                found.add(f"{name}: {target.attr}()")
    assert not found


def test_no_module_decodes_json_by_a_decoder_of_its_own() -> None:
    found = set()
    for name, tree in _modules():
        for call in _calls(tree):
            target = call.func
            key = (
                (target.value.id, target.attr)
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
                else ("", target.id)
                if isinstance(target, ast.Name)
                else ("", "")
            )
            if name != "http/exchange.py" and key in DECODERS and name not in DECODERS[key]:
                found.add(f"{name}: {'.'.join(filter(None, key))}()")
    assert not found


def test_pages_compute_on_what_a_form_brings_off_the_loop() -> None:
    found = set()
    for name, tree in _modules():
        if not re.search(r"(^|/)page", name) or name in INSIDE:
            continue
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            if function.name in COMPUTED.get(name, ()):
                assert isinstance(function, ast.FunctionDef)
                continue
            for call in _calls(function):
                if isinstance(call.func, ast.Name) and call.func.id in OFF_LOOP:
                    found.add(f"{name}: {function.name} calls {call.func.id}")
    assert not found
