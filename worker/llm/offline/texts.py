"""Sentences that the offline rules say in more than one place."""

from __future__ import annotations

from collections.abc import Set

SIGNATURE = "— composed by planq's offline rules, not by a language model"

_EXAMPLES = (
    ("knowledge_search", 'search the handbook for "durable execution"'),
    ("calculate", "calculate (12 + 30) * 2"),
    ("http_fetch", "fetch https://example.org/"),
    ("now", "what time is it"),
    ("wait", "wait 5 seconds"),
    ("write_report", "write a report titled Findings from them"),
)


def help_text(offered: Set[str]) -> str:
    """Return what can be asked for with the `offered` tools."""
    known = [example for tool, example in _EXAMPLES if tool in offered]
    if not known:
        return "None of the tools that my rules know is offered at the moment."
    lines = "\n".join(f"- {example}" for example in known)
    return (
        "I am not a language model; I follow a few fixed rules. You can ask for:\n\n"
        f"{lines}\n\n"
        'Join commands with "and", "then" or commas, and put what is to be taken literally between quotes.'
    )
