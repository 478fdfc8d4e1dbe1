"""The words that planq says to a model, one Markdown file each, and the only code that fills them.

A placeholder is `{{name}}`. All are filled in one pass over the file's own text, so what is put in is never read
again as a template. Text from a tool, a user or a planning model is wrapped by `fenced_data` before it gets here.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources

_PLACEHOLDER = re.compile(r"\{\{([a-z_]+)\}\}")
FENCE_ID = re.compile(r"(?<=data-)[0-9a-f]{16}")
"""The changing part of a fence's tag; cassettes leave it out when they compare requests."""

REFERENCE = "{{ $N.output.<path> }}"
"""The form of a reference inside a text; a placeholder, because braces in a template are placeholders."""


@cache
def _template(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.md").read_text(encoding="utf-8").strip()


def render_prompt(name: str, **values: str) -> str:
    """Return prompt `name` with every placeholder filled; a missing value or file is a defect of planq."""
    return _PLACEHOLDER.sub(lambda match: values[match.group(1)], _template(name))


def fenced_data(text: str) -> str:
    """Return `text` between tags with its digest, which it cannot close and which a repeat has, too."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"<data-{digest}>\n{text}\n</data-{digest}>"
