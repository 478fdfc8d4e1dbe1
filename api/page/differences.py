"""How two documents differ, line by line."""

from __future__ import annotations

import difflib
import json
from typing import Any

_MOST_LINES = 2_000


def laid_out(value: Any) -> str:
    """Return a document as JSON of many lines, of which a few differ where little was changed."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def changes_between(before: Any, after: Any, names: tuple[str, str]) -> str:
    """Return the difference of two documents, as `differences` does of their texts."""
    return differences(laid_out(before), laid_out(after), names)


def differences(before: str, after: str, names: tuple[str, str]) -> str:
    """Return the difference of two texts by lines, none where they are the same.

    Of long ones it is not looked for: that would hold up all others.
    """
    old, new = before.splitlines(), after.splitlines()
    if len(old) + len(new) > _MOST_LINES:
        return "" if before == after else "[too long to be compared here]"
    return "\n".join(difflib.unified_diff(old, new, *names, lineterm=""))
