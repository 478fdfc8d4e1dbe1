"""The defects of a refused plan as text, from the JSON form in which `Findings` carries them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shared.domain.errors import capped
from shared.domain.plan_errors import PlanError, format_plan_errors

_MAX_UNKNOWN_CHARS = 2_000


def told_plan_errors(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return the defects as lines for people and models, as `format_plan_errors` words them.

    Defects of a form that this version does not know (written by another one) are shown as JSON; nothing raises.
    """
    try:
        return format_plan_errors([_from_json(error) for error in errors])
    except (KeyError, TypeError, AttributeError, ValueError):
        shown = json.dumps(list(errors), ensure_ascii=False, default=str)
        return f"Plan validation failed:\n- {capped(shown, _MAX_UNKNOWN_CHARS)}"


def _from_json(stored: Mapping[str, Any]) -> PlanError:
    details = dict(stored["error"])
    kind = details.pop("type")
    return PlanError(stored["tool_index"], stored["argument"], stored["template"], kind, details)
