"""Where the command line writes: answers to standard output, everything said along the way to standard error."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

# Text from jobs, tools and models passes through here: no markup is read in it, and no emoji codes.
out = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
err = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)


_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def plain(text: str) -> str:
    """Return text without control characters: what a tool or a model wrote must not steer the terminal."""
    return text.translate(_CONTROLS)


def print_json(value: Any) -> None:
    """Print a value as JSON for programs: one document, keys in the order given, no colour."""
    out.file.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
    out.file.flush()
