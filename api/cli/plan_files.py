"""Plans in files: JSON, or YAML with its lines."""

from __future__ import annotations

from dataclasses import replace

from planq.api.cli.inputs import STANDARD_INPUT, files_refused, parse_json, read_text
from planq.shared.agentic.source import DocumentSource, read_source

_WHAT = "the plan"


def read_plan_file(name: str) -> DocumentSource:
    """Return the plan in a file, or on standard input for `-`, of YAML with its lines.

    A file whose name ends in .yaml or .yml is YAML, and so is a standard input that does not begin with a brace.
    Raises `InvalidRequest` with the place of what is neither, and `Misconfigured` where it cannot be read.
    """
    text = read_text(name, _WHAT)
    is_yaml = name.lower().endswith((".yaml", ".yml"))
    if not is_yaml and (name != STANDARD_INPUT or text.lstrip().startswith(("{", "[")) or not text.strip()):
        return DocumentSource(parse_json(text, _WHAT))
    source = read_source(text)
    if source.defects:
        raise files_refused([replace(one, file=name) for one in source.defects])
    return source
