"""Which tools may be called: patterns, spellings, the strictest word, and arguments by their digest."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.agentic.tools.policy import argument_digest, fits, read_tool_policy, rule_of


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("mail_send", "mail_send", True),
        ("mail.send", "mail_send", True),
        ("mail/*", "mail_send", True),
        ("*", "anything", True),
        ("mail_?end", "mail_send", True),
        ("mail", "mail_send", False),
        ("MAIL_*", "mail_send", False),
        ("mail_[s]end", "mail_send", False),
        ("m.il_send", "mail_send", False),
        ("cp__*", "cp__call_agents", True),
    ],
)
def test_patterns_have_stars_and_every_spelling_is_the_same_tool(pattern: str, name: str, expected: bool) -> None:
    assert fits(pattern, name) is expected


def test_many_stars_take_no_time() -> None:
    assert fits("*" * 200, "")
    assert not fits("*a" * 80 + "b", "a" * 200)


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ([], "auto"),
        ([{"x": "deny"}], "auto"),
        ([{"*": "ask", "mail": "auto"}], "ask"),
        ([{"mail": "auto"}, {"mail": "deny"}, {"mail": "ask"}], "deny"),
        ([{"ma*": "deny"}, {"*": "ask"}], "deny"),
    ],
)
def test_the_strictest_word_counts_whoever_says_it(policies: list[dict[str, str]], expected: str) -> None:
    assert rule_of("mail", policies).permission == expected


@pytest.mark.parametrize(
    ("house", "others", "approver", "ids"),
    [
        ([{"*": "ask"}], [], "operator", []),
        ([], [{"*": "ask"}], "asker", []),
        ([{"*": "ask:asker"}], [], "asker", []),
        ([{"*": "ask:asker"}], [{"mail": "ask:operator"}], "operator", []),
        ([{"*": "ask:asker"}], [{"*": {"ask": ["ada"]}}], "ids", ["ada"]),
        ([{"*": {"ask": ["ada", "bob"]}}], [{"m*": {"ask": ["bob", "eve"]}}, {"*": "ask"}], "ids", ["bob"]),
        ([{"*": {"ask": ["ada"]}}], [{"*": {"ask": ["bob"]}}], "operator", []),
        ([{"*": {"ask": ["ada"]}}, {"mail": "ask"}], [{"*": "auto"}], "operator", []),
    ],
)
def test_the_strictest_approver_counts_and_ask_alone_means_who_says_it(
    house: list[Any], others: list[Any], approver: str, ids: list[str]
) -> None:
    rule = rule_of("mail", others, of_operators=house)

    assert (rule.permission, rule.approver, sorted(rule.ids)) == ("ask", approver, ids)


def test_a_digest_is_of_what_the_arguments_say() -> None:
    digest = argument_digest({"a": [1, {"x": None, "y": "ü"}], "b": 2})

    assert digest == argument_digest({"b": 2, "a": [1, {"y": "ü", "x": None}]})
    assert digest != argument_digest({"b": 2, "a": [{"y": "ü", "x": None}, 1]})
    assert argument_digest({"a": None}) != argument_digest({})


def test_a_policy_is_read_strictly() -> None:
    assert read_tool_policy('{"mail_*": "ask"}') == {"mail_*": "ask"}
    named = {"a": "ask:asker", "b": "ask:operator", "c": {"ask": ["ada"]}}
    assert read_tool_policy(named) == named
    assert read_tool_policy("") == {}
    wrong: list[Any] = ["[]", '{"a": "perhaps"}', '{"": "ask"}', '{"a": "ask", "a": "deny"}', "{", '{"a": ["ask"]}']
    wrong += ['{"a": "ask:ada"}', '{"a": {"ask": []}}', '{"a": {"ask": [""]}}', '{"a": {"ask": ["x"], "deny": []}}']
    for raw in [*wrong, {"a" * 201: "deny"}]:
        with pytest.raises(ValueError, match="expected"):
            read_tool_policy(raw)
