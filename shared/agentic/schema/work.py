"""How much work it is to check a value against a schema, known before the check begins.

Nothing can stop jsonschema-rs once it runs. `is_valid` remembers the results of recursive references, so its work is
at most the schema with its references written out, for each part of the value. Its errors take more: each copies the
part of the value that it is about, and those of `anyOf` and `oneOf` hold the errors of all alternatives, which
recursion multiplies at each level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from planq.shared.agentic.schema.patterns import own_patterns, size_of
from planq.shared.agentic.schema.reach import ReachableSchema, applied, reachable, written_out
from planq.shared.platform.values.describe import MAX_DEPTH

MAX_STEPS = 20_000_000
"""Maximum steps of one check; a step is one keyword of one part of a value and takes about 15 ns (2026-11)."""

_NEGLIGIBLE = 200_000
"""Steps that no check spends: 3 ms."""

_STEPS_OF_A_PAIR = 200
"""Steps that it takes to count what one schema does with one part of a value, which Python code does."""

_UNEVALUATED = 3
"""Times that jsonschema-rs goes through a schema with `unevaluatedProperties` or `unevaluatedItems`."""

_STEPS_OF_A_CHILD = 10
"""Steps that it takes to look at each member of an object or an array."""

_STEPS_OF_AN_ITEM = 100
"""Steps to compare a value with one item of an `enum` or a `const` that is an object or an array."""

_STEPS_OF_UNIQUE = 20
"""Steps that `uniqueItems` takes for each part of an array."""

_BYTES_PER_STEP = 1_500
"""The worst patterns take 10 µs for a character and a megabyte of program."""

_CONTAINERS = (dict, list, tuple)
_READS_TEXT = ("format", "minLength", "maxLength")


class TooCostly(Exception):
    """A check needs more steps than are left."""


@dataclass(slots=True, eq=False)
class Steps:
    """Steps that one check, or several together, may still spend."""

    left: int = MAX_STEPS

    @property
    def are_spent(self) -> bool:
        """True when a check wanted more than there were."""
        return self.left < 0

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooCostly


class Cost(NamedTuple):
    """`steps` to decide; `copied` parts of the value at most in the errors, `alternatives` of them in one error."""

    steps: int
    copied: int
    alternatives: int = 0


class Work:
    """Counts the work of checks against one schema, whose references all resolve and which never changes."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        reached = reachable(schema)
        self._schema = schema
        self._referred = {id(one.contents): one.referred for one in reached}
        self._weights = {id(one.contents): _weight(one) for one in reached}
        sizes = written_out(reached, lambda one: self._weights[id(one.contents)], _UNEVALUATED)
        self._size = sizes[id(schema)]
        self._character = max((_character_steps(one.contents) for one in reached), default=0)
        self.few_parts = 0 if self._character else _NEGLIGIBLE // self._size
        """Parts of a value that take no more steps to check than would be worth counting."""

    def decide(self, value: Any, parts: int, steps: Steps) -> None:
        """Spend what it takes to decide whether `value`, of at most `parts` parts, is valid; raises `TooCostly`."""
        estimate = parts * self._size
        if self._character and estimate <= steps.left:
            estimate += _characters(value) * self._size * self._character
        steps.spend(estimate if estimate <= steps.left else self.count(value, steps).steps)

    def count(self, value: Any, steps: Steps) -> Cost:
        """Return the exact upper bounds for `value`, spending steps; raises `TooCostly`, and RecursionError."""
        return _Count(steps, self._referred, self._weights).of(self._schema, value)


class _Count:
    def __init__(self, steps: Steps, referred: Mapping[int, Any], weights: Mapping[int, int]) -> None:
        self._steps = steps
        self._referred = referred
        self._weights = weights
        self._sizes: dict[int, int] = {}
        self._known: dict[tuple[int, int], Cost] = {}

    def of(self, schema: Any, value: Any) -> Cost:
        if not isinstance(schema, Mapping):
            return Cost(1, 0 if schema else self._size(value))
        key = (id(schema), id(value))
        if key in self._known:
            return self._known[key]
        self._known[key] = Cost(0, 0)  # where a schema refers to itself for the same value, jsonschema-rs turns back
        self._steps.spend(
            _STEPS_OF_A_PAIR + (_STEPS_OF_A_CHILD * len(value) if isinstance(value, _CONTAINERS) else 0)
        )
        weight = self._weights.get(id(schema), 1)
        steps, copied, most, alternatives = weight, weight * self._size(value), 0, 0
        referred = (("$ref", target, value) for target in self._referred.get(id(schema), ()))
        for keyword, inner, part in chain(applied(schema, value), referred):
            cost = self.of(inner, part)
            steps += cost.steps
            copied += cost.copied
            most = max(most, cost.alternatives)
            if keyword in ("anyOf", "oneOf"):
                alternatives += cost.copied
        if isinstance(value, str):
            steps += _character_steps(schema) * len(value)
        elif isinstance(value, dict) and "patternProperties" in schema:
            steps += _character_steps(schema) * sum(map(len, value))
        elif isinstance(value, (list, tuple)) and "uniqueItems" in schema:
            steps += _STEPS_OF_UNIQUE * self._size(value)
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            steps *= _UNEVALUATED
        cost = self._known[key] = Cost(steps, copied, max(most, alternatives))
        return cost

    def _size(self, value: Any) -> int:
        if not isinstance(value, _CONTAINERS):
            return 1 + len(value) // 1_000 if isinstance(value, str) else 1
        if id(value) not in self._sizes:
            inner = value.values() if isinstance(value, dict) else value
            self._sizes[id(value)] = 1 + sum(map(self._size, inner))
        return self._sizes[id(value)]


def _weight(one: ReachableSchema) -> int:
    weight = 1
    for keyword, rule in one.contents.items():
        if keyword in ("enum", "const"):
            weight += sum(map(_item_steps, rule if isinstance(rule, list) else [rule]))
        elif keyword == "uniqueItems":
            weight += _STEPS_OF_UNIQUE * MAX_DEPTH  # a part is compared in each array around it
        elif keyword in ("dependentRequired", "dependencies"):
            weight += sum(len(names) for names in rule.values() if isinstance(names, list))
        else:
            weight += len(rule) if isinstance(rule, list) else 1
    return weight


def _item_steps(item: Any) -> int:
    if not isinstance(item, (dict, list)):
        return 1
    return _STEPS_OF_AN_ITEM + sum(map(_item_steps, item.values() if isinstance(item, dict) else item))


def _character_steps(schema: Mapping[str, Any]) -> int:
    """Return the steps that the keywords of one schema take for each character."""
    return sum(keyword in schema for keyword in _READS_TEXT) + sum(
        1 + size_of(pattern) // _BYTES_PER_STEP for pattern in own_patterns(schema)
    )


def _characters(value: Any) -> int:
    if isinstance(value, dict):
        return sum(len(name) + _characters(inner) for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(_characters, value))
    return len(value) if isinstance(value, str) else 0
