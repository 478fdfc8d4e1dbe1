"""Values are made once for the same objects, and made again for others, however much alike."""

from __future__ import annotations

from collections.abc import Sequence

from planq.worker.models.identity_cache import IdentityCache


class Counted:
    """Joins texts, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def join(self, parts: Sequence[list[str]]) -> str:
        self.times += 1
        return "+".join(text for part in parts for text in part)


def test_the_same_objects_in_another_list_are_the_same() -> None:
    counted = Counted()
    joined = IdentityCache(counted.join, parts=lambda of: of)
    one, two = ["1"], ["2"]
    assert [joined([one, two]), joined((one, two)), joined([two, one])] == ["1+2", "1+2", "2+1"]
    assert counted.times == 2


def test_equal_objects_are_not_the_same() -> None:
    counted = Counted()
    joined = IdentityCache(counted.join, parts=lambda of: of)
    first = ["1"]
    assert joined([first]) == joined([["1"]]) == "1"
    assert counted.times == 2


def test_what_was_asked_for_longest_ago_is_forgotten_first() -> None:
    counted = Counted()
    joined = IdentityCache(counted.join, most=2, parts=lambda of: of)
    one, two, three = ["1"], ["2"], ["3"]
    for part in (one, two, one, three, one):
        joined([part])
    assert counted.times == 3, "one was asked for again in time"
    joined([two])
    assert counted.times == 4


def test_an_object_that_is_gone_is_not_taken_for_another_one() -> None:
    """Ids are given again: whatever is remembered keeps its objects alive."""
    joined = IdentityCache(Counted().join, most=50, parts=lambda of: of)
    assert [joined([[str(n)]]) for n in range(50)] == [str(n) for n in range(50)]
