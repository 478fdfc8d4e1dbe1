"""Asking a person at the terminal for the content of an answer, as the question's schema wants it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import typer

from planq.api.cli.console import as_line, err, shown_json
from planq.shared.platform.errors import InvalidRequest
from planq.shared.platform.values.pointers import to_pointer
from planq.shared.subjects.tenants.secrecy import secret_fields

_LONGEST_DEFAULT = 1_000


def content_asked_for(question: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for the content of an answer, one property after the other; one left empty is left out unless required."""
    err.print(as_line(question["message"], 2_000), style="bold")
    if question["url"]:
        err.print(as_line(question["url"], 2_000))
    for name, value in (question["details"] or {}).items():
        err.print(f"  {as_line(name, 60)}: {as_line(value, 300)}", style="dim")
    schema = question["schema"] or {}
    secret = secret_fields(schema) or schema.get("properties", {}).keys() if question.get("is_secret") else ()
    return dict(_properties(schema, secret))


def _properties(schema: Mapping[str, Any], secret: Collection[str]) -> Iterator[tuple[str, Any]]:
    required = schema.get("required", ())
    for name, described in schema.get("properties", {}).items():
        wanted = described if isinstance(described, Mapping) else {}
        hint = wanted.get("enum") or wanted.get("type") or "JSON"
        shown = " | ".join(map(str, hint)) if isinstance(hint, list) else str(hint)
        label = f"{as_line(wanted.get('title') or name, 80)} ({as_line(shown, 200)})"
        if text := wanted.get("description"):
            err.print(as_line(text, 500), style="dim")
        is_secret = name in secret
        empty = "" if name not in required else None
        default = empty if is_secret else wanted.get("default", empty)
        while True:
            # What is taken by Enter is shown to the last character, and never by click, which prints it as it is.
            shown = f"{label}{_shown_default(default)}"
            typed = typer.prompt(shown, default=default, show_default=False, hide_input=is_secret, err=True)
            if typed == "" and name not in required:
                break
            try:
                value = _checked(_value(typed, wanted, name), schema, name)
            except InvalidRequest as error:
                err.print(
                    f"{name}: not as its schema says" if is_secret else as_line(error.message, 500), style="red"
                )
                continue
            yield name, value
            break


def _shown_default(default: Any) -> str:
    if default in (None, ""):
        return ""
    is_clear = isinstance(default, str) and default == as_line(default, _LONGEST_DEFAULT)
    shown = default if is_clear else shown_json(default)
    return f" [{shown[:_LONGEST_DEFAULT]}{'…' if len(shown) > _LONGEST_DEFAULT else ''}]"


def _checked(value: Any, schema: Mapping[str, Any], name: str) -> Any:
    from planq.shared.subjects.questions.answering import content_defects

    place = "/content" + to_pointer((None, name))
    # References in the schema of one property may lead anywhere in the whole; that others are missing is not meant.
    found = content_defects({**schema, "required": []}, {name: value})
    mine = [defect["message"] for defect in found if (defect["pointer"] + "/").startswith(place + "/")]
    if mine:
        raise InvalidRequest(f"{name}: {'; '.join(mine)}")
    return value


def _value(typed: Any, wanted: Mapping[str, Any], name: str) -> Any:
    """Return what was typed as the schema wants it: a text as it stands, all else as JSON."""
    from planq.api.cli.inputs import parse_json

    choices = wanted.get("enum") or [None]
    if not isinstance(typed, str) or wanted.get("type") == "string" or all(isinstance(one, str) for one in choices):
        return typed
    written = wanted.get("type")
    types = [one for one in written if one != "null"] if isinstance(written, list) else [written]
    if types == ["boolean"] and typed.lower() in _BOOLEANS:
        return _BOOLEANS[typed.lower()]
    return parse_json(typed, name)


_BOOLEANS = {"y": True, "yes": True, "n": False, "no": False}
