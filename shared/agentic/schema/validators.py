"""The library's validators, with a bound: whatever schema meets whatever value, the check of one ends in known time.

The library (jsonschema 4.26) holds a value against a schema as often as it is led there, which two alternatives that
both refer to the next two double with every level; so does its Rust counterpart, which cannot be stopped, and ends
the process when memory does (jsonschema-rs 0.60: 3 GB in 20 s for a schema of 2 kB). Here a check meets each pair of
a schema and a part of the value once, remembers what it found, and counts its steps. The library keeps what each
keyword means; this module holds the way from one to the next, patterns, and what is compared pairwise.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any, Final

import jsonschema
from jsonschema import validators as dialects
from jsonschema.exceptions import ValidationError
from referencing.jsonschema import DRAFT202012, lookup_recursive_ref, specification_with

from planq.shared.agentic.schema.formats import has_format
from planq.shared.agentic.schema.patterns import find_match
from planq.shared.agentic.schema.reach import REGISTRY

MAX_VIOLATIONS = 20
"""How many violations of one value are reported; an author who repairs twenty finds the rest on the next try."""

MAX_STEPS = 1_000_000
"""Steps of one check: 2 to 3 µs each (2026-11), so a few seconds of one processor at the very most."""


class TooCostly(Exception):
    """A check has used up its steps."""


class Unknown(Enum):
    """Stands for a part of a value that is not known yet: no schema is taken to forbid it."""

    UNKNOWN = "\0 not known yet"
    """What jsonschema-rs takes it for: a text that strangers may send too, to be checked when their step runs."""

    def __repr__(self) -> str:
        return "<not known yet>"


UNKNOWN: Final = Unknown.UNKNOWN


@dataclass(slots=True, eq=False)
class Steps:
    """What one check, or several together, may still spend."""

    left: int = MAX_STEPS

    @property
    def are_spent(self) -> bool:
        """True when a check wanted more than there were."""
        return self.left < 0

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooCostly


@dataclass(slots=True, eq=False)
class Fault:
    """One way in which a value breaks a schema, in the library's terms.

    `path` leads to the part of the value, `branch` tells which alternative it was found by, `context` what each
    alternative found.
    """

    message: str
    keyword: str | None
    rule: Any
    value: Any
    schema: Any
    context: tuple[Fault, ...] = ()
    path: tuple[str | int, ...] = ()
    branch: Any = None
    parent: Any = None  # the library sets it, nobody reads it


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be done for one schema."""

    checks: tuple[tuple[str, Callable[..., Any], Any], ...]
    weight: int
    leads_on: bool


class BoundedSchema:
    """A schema of which every check ends; preconditions: it is valid, and never changed."""

    def __init__(self, schema: Mapping[str, Any], *, partial: bool, remembers: bool) -> None:
        """With `partial`, values may hold `UNKNOWN`.

        `remembers` must be False where what a schema means depends on how it was come to (`$dynamicRef`).
        """
        stock = dialects.validator_for(schema, default=jsonschema.Draft202012Validator)
        self._validator = _dialect(stock, partial)(schema, registry=REGISTRY)
        self._remembers = remembers
        self._plans: dict[int, tuple[Any, _Plan]] = {}

    def faults(self, value: Any, steps: Steps) -> tuple[Fault, ...]:
        """Return at most `MAX_VIOLATIONS` faults of `value`, one for each place and keyword.

        Raises `TooCostly`, RecursionError, ArithmeticError, and what the library does for an absent reference.
        """
        token = _RUN.set(_Run(steps, self._plans, self._remembers))
        try:
            return tuple(self._validator.iter_errors(value))
        finally:
            _RUN.reset(token)


class _Run:
    """One check: what was found for which schema and which part of the value.

    What is remembered by its identity is kept as well, so that nothing else can get that identity meanwhile.
    """

    __slots__ = ("evaluated", "found", "plans", "remembers", "steps", "unique")

    def __init__(self, steps: Steps, plans: dict[int, tuple[Any, _Plan]], remembers: bool) -> None:
        self.steps = steps
        self.plans = plans
        self.remembers = remembers
        self.found: dict[tuple[int, int], tuple[Any, Any, tuple[Fault, ...]]] = {}
        self.evaluated: dict[tuple[int, int], tuple[Any, Any, set[Any]]] = {}
        self.unique: dict[int, tuple[Any, bool]] = {}


_RUN: ContextVar[_Run] = ContextVar("planq_schema_check")


def _found(validator: Any, value: Any, schema: Any, resolver: Any) -> tuple[Fault, ...]:
    """Return what is wrong with a part of the value by one schema that is an object."""
    run = _RUN.get()
    known = run.plans.get(id(schema))
    plan = known[1] if known is not None else _planned(run, validator, schema)
    remembers = plan.leads_on and run.remembers
    key = (id(schema), id(value))
    if remembers and key in run.found:
        run.steps.spend(1)
        return run.found[key][2]
    run.steps.spend(plan.weight + (len(value) if isinstance(value, (dict, list)) else 0))
    here = _standing(validator, schema, resolver)
    faults: dict[Any, Fault] = {}
    for keyword, check, rule in plan.checks:
        for error in check(here, rule, value, schema) or ():
            fault = error if isinstance(error, Fault) else _fault(error, keyword, rule, value, schema)
            faults.setdefault((fault.path, fault.keyword), fault)
            if len(faults) >= MAX_VIOLATIONS:
                break
        if len(faults) >= MAX_VIOLATIONS:
            break
    found = tuple(faults.values())
    if remembers:
        run.found[key] = (schema, value, found)
    return found


def _standing(validator: Any, schema: Mapping[str, Any], resolver: Any) -> Any:
    """Return the validator from which references in `schema` are followed."""
    resolver = validator._resolver if resolver is None else resolver
    if "$id" in schema or "id" in schema:
        resolver = resolver.in_subresource(type(validator).planq_resource(schema))
    if resolver is validator._resolver and "$schema" not in schema:
        return validator
    return validator.evolve(schema=schema, _resolver=resolver)


_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_LISTS = frozenset({"enum", "const", "required", "type"})
"""Keywords of several values that lead to no other schema."""


def _planned(run: _Run, validator: Any, schema: Mapping[str, Any]) -> _Plan:
    known = type(validator).VALIDATORS
    applied = type(validator)._APPLICABLE_VALIDATORS(schema)
    checks = tuple((keyword, known[keyword], rule) for keyword, rule in applied if keyword in known)
    weight = 1 + sum(_weight(keyword, rule) for keyword, _, rule in checks)
    leads_on = any(
        keyword in _REFERENCES or (isinstance(rule, (dict, list)) and keyword not in _LISTS)
        for keyword, _, rule in checks
    )
    plan = _Plan(checks, weight, leads_on)
    run.plans[id(schema)] = (schema, plan)
    return plan


def _weight(keyword: str, rule: Any) -> int:
    """Return how many steps it takes to look at a keyword itself, without what it leads to."""
    if not isinstance(rule, (dict, list)):
        return 1
    if keyword not in ("enum", "const"):
        return 1 + len(rule)
    count, stack = 0, [rule]
    while stack:
        item = stack.pop()
        count += 1
        stack.extend(item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
    return count


def _fault(error: ValidationError, keyword: str, rule: Any, value: Any, schema: Any) -> Fault:
    own: Any = error
    named = isinstance(own.validator, str)
    return Fault(
        own.message,
        own.validator if named else keyword,
        own.validator_value if named else rule,
        value,
        schema,
        tuple(own.context or ()),
        tuple(own.relative_path),
    )


def _descend(
    self: Any, instance: Any, schema: Any, path: Any = None, schema_path: Any = None, resolver: Any = None
) -> Iterator[Fault]:
    """Stand in for the library's way from a keyword to a schema."""
    if schema is True:
        return iter(())
    if schema is False:
        found: tuple[Fault, ...] = (Fault("nothing is allowed here", None, None, instance, False),)
    else:
        found = _found(self, instance, schema, resolver)
    if not found or (path is None and schema_path is None):
        return iter(found)
    before = () if path is None else (path,)
    return iter([replace(fault, path=(*before, *fault.path), branch=schema_path) for fault in found])


def _iter_errors(self: Any, instance: Any) -> Iterator[Fault]:
    return _descend(self, instance, self.schema, resolver=self._resolver)


def _evolve(self: Any, **changes: Any) -> Any:
    """Stand in for the library's, which leaves the bounds where a subschema names its dialect."""
    run = _RUN.get(None)
    if run is not None:
        run.steps.spend(1)  # the library goes about in schemas by this alone, looking for evaluated items
    schema = changes.setdefault("schema", self.schema)
    kind = type(self)
    if isinstance(schema, Mapping) and "$schema" in schema:
        stock = dialects.validator_for(schema, default=kind.planq_stock)
        if stock is not jsonschema.Draft3Validator:  # whose types may be schemas
            kind = _dialect(stock, kind.planq_partial)
    changes.setdefault("_resolver", self._resolver)
    return kind(registry=self._registry, **changes)


_extend: Any = dialects.extend
"""The library leaves this function without types."""


@lru_cache(maxsize=32)
def _dialect(stock: Any, partial: bool) -> Any:
    """Return the library's class for a dialect, bound as this module says."""
    stocked = stock.VALIDATORS
    own = {
        "$ref": _reference,
        "$dynamicRef": _reference,
        "additionalProperties": _additional_properties(stocked["additionalProperties"]),
        "anyOf": _any_of,
        "contains": _contains(counts="unevaluatedItems" in stocked),
        "enum": _enum,
        "format": _format,
        "not": _not,
        "oneOf": _one_of,
        "pattern": _pattern,
        "type": _type,
        "patternProperties": _pattern_properties,
        "unevaluatedItems": _unevaluated_items,
        "unevaluatedProperties": _unevaluated_properties,
        "uniqueItems": _unique_items,
        **_LENGTHS,
    }
    if "prefixItems" in stocked:
        own["items"] = _items_after("prefixItems", stocked["items"])
    else:
        own["additionalItems"] = _additional_items(stocked.get("additionalItems"))
    checks = {**stocked, **{name: check for name, check in own.items() if name in stocked}}
    if partial:
        checks = {name: _excusing(name, check) for name, check in checks.items()}
    made = _extend(stock, checks)
    made.descend, made.iter_errors, made.evolve = _descend, _iter_errors, _evolve
    made.planq_stock, made.planq_partial = stock, partial
    made.planq_resource = staticmethod(_resources_of(stock))
    return made


def _resources_of(stock: Any) -> Callable[[Any], Any]:
    named: str = stock.META_SCHEMA["$schema"]
    return specification_with(named, default=DRAFT202012).create_resource


_MOST_CONTEXT = 200
"""Faults that are remembered of all alternatives of one place; one of them is reported."""

_WHOLE_VALUE = frozenset(
    {"const", "contains", "enum", "if", "not", "oneOf", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"}
)
"""Keywords whose verdict can turn with any part of the value, so that one unknown part suspends them."""


def _excusing(keyword: str, check: Any) -> Any:
    def excused(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
        if instance is UNKNOWN:
            return ()
        if keyword in _WHOLE_VALUE and _holds_unknown(instance):
            return validator.VALIDATORS["anyOf"](validator, rule, instance, schema) if keyword == "oneOf" else ()
        return check(validator, rule, instance, schema)

    return excused


def _holds_unknown(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_unknown, value.values()))
    return any(map(_holds_unknown, value)) if isinstance(value, list) else value is UNKNOWN


def _reference(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
    found = validator._resolver.lookup(rule)
    if isinstance(found.contents, bool):
        return _descend(validator, instance, found.contents)
    return _found(validator, instance, found.contents, found.resolver)


def _is_found(pattern: str, text: str) -> bool:
    read = find_match(pattern)
    _RUN.get().steps.spend(read.steps(text))
    return read.is_found(text)


def _pattern(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _is_found(rule, instance):
        yield ValidationError(f"does not match {rule!r}")


def _pattern_properties(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for pattern, inner in rule.items():
            for name, value in instance.items():
                if _is_found(pattern, name):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(check: Any) -> Any:
    """Return the library's check without its own way to match names: those that a pattern matches are known to it."""

    def checked(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
        patterns = schema.get("patternProperties")
        if patterns and validator.is_type(instance, "object"):
            known = {name: True for name in instance if any(_is_found(pattern, name) for pattern in patterns)}
            rest = {name: inner for name, inner in schema.items() if name != "patternProperties"}
            schema = {**rest, "properties": {**known, **schema.get("properties", {})}}
        return check(validator, rule, instance, schema)

    return checked


def _items_after(before: str, check: Any) -> Any:
    """Return the library's check of what follows the `before` items, which would quote all that is too much."""

    def checked(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
        known = schema.get(before, [])
        if rule is not False or not isinstance(known, list) or not validator.is_type(instance, "array"):
            return check(validator, rule, instance, schema)
        return [ValidationError("has further items")] if len(instance) > len(known) else ()

    return checked


def _additional_items(check: Any) -> Any:
    beyond = _items_after("items", check)

    def checked(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
        return beyond(validator, rule, instance, schema) if isinstance(schema.get("items"), list) else ()

    return checked


def _length(kind: str, breaks: Callable[[int, Any], bool]) -> Any:
    def check(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
        broken = validator.is_type(instance, kind) and breaks(len(instance), rule)
        return [ValidationError("has another length")] if broken else ()

    return check


_LENGTHS = {
    "minItems": _length("array", operator.lt),
    "maxItems": _length("array", operator.gt),
    "minLength": _length("string", operator.lt),
    "maxLength": _length("string", operator.gt),
    "minProperties": _length("object", operator.lt),
    "maxProperties": _length("object", operator.gt),
}
"""The library quotes the whole value in its messages, as often as it is too long for an alternative."""


def _type(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
    types = [rule] if isinstance(rule, str) else rule
    fits = any(validator.is_type(instance, one) for one in types)
    return () if fits else [ValidationError("is of another type")]


def _enum(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
    equals: Any = jsonschema.Draft202012Validator.VALIDATORS["const"]
    fits = any(next(equals(validator, one, instance, schema), None) is None for one in rule)
    return () if fits else [ValidationError("is none of the choices")]


def _not(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
    return [ValidationError("is what it must not be")] if _is_valid(validator, instance, rule) else ()


def _any_of(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
    context: list[Any] = []
    for index, inner in enumerate(rule):
        found = list(validator.descend(instance, inner, schema_path=index))
        if not found:
            return ()
        context += found[: max(0, _MOST_CONTEXT - len(context))]
    return [ValidationError("fits no alternative", context=context)]


def _one_of(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
    none = _any_of(validator, rule, instance, schema)
    if none:
        return none
    fitting = sum(_is_valid(validator, instance, inner) for inner in rule)
    return [ValidationError("fits more than one alternative")] if fitting > 1 else ()


def _contains(counts: bool) -> Any:
    def check(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
        if not validator.is_type(instance, "array"):
            return ()
        least, most = (schema.get("minContains", 1), schema.get("maxContains")) if counts else (1, None)
        fitting = sum(_is_valid(validator, item, rule) for item in instance)
        if most is not None and fitting > most:
            return [ValidationError("contains too many", validator="maxContains", validator_value=most)]
        if fitting >= least:
            return ()
        if fitting == 0:
            return [ValidationError("contains none")]
        return [ValidationError("contains too few", validator="minContains", validator_value=least)]

    return check


def _unevaluated_properties(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[Any]:
    # The library's check, for a schema that says nothing else: it knows the names that are evaluated elsewhere.
    if validator.is_type(instance, "object"):
        known = {"properties": dict.fromkeys(_evaluated_beside(validator, instance, schema), True)}
        check: Any = jsonschema.Draft202012Validator.VALIDATORS["unevaluatedProperties"]
        yield from check(validator, rule, instance, {**known, "unevaluatedProperties": rule})


def _unevaluated_items(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "array"):
        known = _evaluated_beside(validator, instance, schema)
        if any(index not in known and not _is_valid(validator, item, rule) for index, item in enumerate(instance)):
            yield ValidationError("has items that nothing else allows")


def _evaluated(validator: Any, instance: Any, schema: Any) -> set[Any]:
    """Return the names or indexes of `instance` that `schema`, or what it applies to the same value, speaks of.

    JSON Schema 2020-12, Core 11.2 and 11.3. The library matches names with Python's engine for regular expressions,
    and goes every way that leads to a schema. `validator` stands where `schema` does.
    """
    if not isinstance(schema, Mapping):
        return set()
    run = _RUN.get()
    key = (id(schema), id(instance))
    if run.remembers and key in run.evaluated:
        run.steps.spend(1)
        return run.evaluated[key][2]
    found = _evaluated_beside(validator, instance, schema)
    keyword = "unevaluatedProperties" if isinstance(instance, dict) else "unevaluatedItems"
    if keyword in schema:
        rest = schema[keyword]
        found.update(place for place, value in _parts(instance) if _is_valid(validator, value, rest))
    if run.remembers:
        run.evaluated[key] = (schema, instance, found)
    return found


def _evaluated_beside(validator: Any, instance: Any, schema: Mapping[str, Any]) -> set[Any]:
    """Return what `schema` evaluates by anything but its own `unevaluatedProperties` and `unevaluatedItems`."""
    _RUN.get().steps.spend(1 + len(schema.get("properties", ())) + len(instance))
    own = _evaluated_names if isinstance(instance, dict) else _evaluated_indexes
    found = own(validator, instance, schema)
    for where, inner in (*_referred(validator, schema), *_applied(validator, instance, schema)):
        found |= _evaluated(where, instance, inner)
    return found


def _evaluated_names(validator: Any, instance: Mapping[str, Any], schema: Mapping[str, Any]) -> set[Any]:
    patterns = schema.get("patternProperties", ())
    names = {name for name in schema.get("properties", ()) if name in instance}
    names.update(name for name in instance if any(_is_found(pattern, name) for pattern in patterns))
    if "additionalProperties" in schema:
        rest = schema["additionalProperties"]
        names.update(name for name, value in instance.items() if _is_valid(validator, value, rest))
    return names


def _evaluated_indexes(validator: Any, instance: list[Any], schema: Mapping[str, Any]) -> set[Any]:
    items = schema.get("items")
    if isinstance(items, (dict, bool)) or (items is not None and "additionalItems" in schema):
        return set(range(len(instance)))
    before = items if isinstance(items, list) else schema.get("prefixItems", ())
    indexes: set[Any] = set(range(min(len(before), len(instance))))
    if "contains" in schema:
        rule = schema["contains"]
        indexes.update(index for index, item in enumerate(instance) if _is_valid(validator, item, rule))
    return indexes


def _parts(instance: Any) -> Any:
    return instance.items() if isinstance(instance, dict) else enumerate(instance)


def _referred(validator: Any, schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    resolver = validator._resolver  # the library hands it to its own keywords in no other way
    found = [resolver.lookup(schema[keyword]) for keyword in ("$ref", "$dynamicRef") if keyword in schema]
    if "$recursiveRef" in schema:
        found.append(lookup_recursive_ref(resolver))
    for one in found:
        yield validator.evolve(schema=one.contents, _resolver=one.resolver), one.contents


def _applied(validator: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    if isinstance(instance, dict):
        for name, inner in schema.get("dependentSchemas", {}).items():
            if name in instance:
                yield validator, inner
    for keyword in ("allOf", "oneOf", "anyOf"):
        for inner in schema.get(keyword, ()):
            if _is_valid(validator, instance, inner):
                yield validator, inner
    if "if" in schema:
        holds = _is_valid(validator, instance, schema["if"])
        for keyword in ("if", "then") if holds else ("else",):
            if keyword in schema:
                yield validator, schema[keyword]


def _is_valid(validator: Any, value: Any, schema: Any) -> bool:
    return next(validator.descend(value, schema), None) is None


def _format(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
    is_well = not validator.is_type(instance, "string") or has_format(rule, instance)
    return () if is_well else [ValidationError("has another format")]


def _unique_items(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
    if not rule or not validator.is_type(instance, "array"):
        return ()
    known = _RUN.get().unique
    if id(instance) not in known:
        known[id(instance)] = (instance, _are_unique(instance))
    return () if known[id(instance)][1] else [ValidationError("has non-unique elements")]


def _are_unique(items: list[Any]) -> bool:
    # The library compares every pair when the items cannot be sorted: minutes for a large array of objects.
    seen: set[str] = set()
    for key in (json.dumps(_comparable(item), sort_keys=True) for item in items):
        if key in seen:
            return False
        seen.add(key)
    return True


def _comparable(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return {key: _comparable(item) for key, item in value.items()} if isinstance(value, dict) else value
