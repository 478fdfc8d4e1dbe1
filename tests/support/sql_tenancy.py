"""Reads SQL and says which mentions of a tenant's tables are not tied to one tenant.

A mention is *tied* where a condition compares the table's `tenant_id`, where it inserts one, or where a key (a column
of type UUID) reaches it from what is tied: another mention, or a variable that a tied statement has filled or looked
up, or that a function has returned for such a variable. A condition counts only where it must hold: not beside an OR
and not in a CASE. The reader knows as much of SQL as planq uses; a mention in a statement that it
misreads is not tied, and so is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Tables: TypeAlias = Mapping[str, frozenset[str]]
"""The keys of each tenant's table, by its name."""

_TOKEN = re.compile(
    r"--[^\n]*|'(?:[^']|'')*'|%\(\w+\)s|\"\w+\"|[A-Za-z_]\w*(?:\.\w+)*(?:\.\*)?|\d[\w.]*|:=|::|<>|<=|>=|->>|->|\S"
)
_FUNCTION = re.compile(r"CREATE FUNCTION (\w+)\(.*?AS \$\$(.*?)\$\$", re.DOTALL)
_VERBS = {"SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "VALUES"}
_SOURCES = {"FROM", "JOIN", "USING"}
_CONDITIONS = {"WHERE", "ON"}
_SETS = {"UNION", "EXCEPT", "INTERSECT"}
_CLAUSES = {
    *("SET", "RETURNING", "GROUP", "ORDER", "HAVING", "LIMIT", "OFFSET", "FOR", "WINDOW", "LOOP", "DO", "CONFLICT"),
    "INTO",
}
_JOINS = {"LEFT", "RIGHT", "FULL", "CROSS", "INNER", "NATURAL", "LATERAL"}
_OWN_OR_SHARED = {"%(tenant_id)s", ",", "''"}
"""One tenant, or the empty name: of what is for all tenants."""

_RESERVED = _VERBS | _SOURCES | _CONDITIONS | _SETS | _CLAUSES | _JOINS | {"AS", "AND", "WITH", "ORDINALITY"}


class Group(list["str | Group"]):
    """What stands between two parentheses, or a whole statement; equal to itself alone."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]

    @property
    def is_query(self) -> bool:
        """Whether it is a statement of its own."""
        return bool(self) and self[0] in _VERBS


@dataclass(eq=False)
class Mention:
    """What rows come from: a tenant's table, or without `table` the queries of a CTE or a subquery, or a function."""

    table: str | None = None
    queries: Sequence[Part] = ()
    is_tied: bool = False
    links: list[Mention | str | Sequence[Part]] = field(default_factory=list)

    @property
    def has_rows(self) -> bool:
        """Whether rows of a tenant may stand in it; a function's result has values that were given."""
        return self.table is not None or bool(self.queries)


@dataclass(eq=False)
class Part:
    """One SELECT, INSERT, UPDATE or DELETE; `around` is what it stands in, `fills` the variables with its rows."""

    around: Part | None = None
    mentions: dict[str, Mention] = field(default_factory=dict)
    ctes: dict[str, list[Part]] = field(default_factory=dict)
    fills: set[str] = field(default_factory=set)

    def outwards(self) -> Iterator[Part]:
        """Yield the part and those around it, innermost first."""
        part: Part | None = self
        while part is not None:
            yield part
            part = part.around

    def mention(self, alias: str) -> Mention | None:
        """Return what an alias stands for here."""
        return next((part.mentions[alias] for part in self.outwards() if alias in part.mentions), None)

    def cte(self, name: str) -> list[Part]:
        """Return the parts of the CTE of this name, none where there is no such."""
        return next((part.ctes[name] for part in self.outwards() if name in part.ctes), [])


def functions(text: str) -> Mapping[str, str]:
    """Return the bodies of the SQL functions in a file, by name."""
    return dict(_FUNCTION.findall(text))


def untied(text: str, tables: Tables) -> set[str]:
    """Return the tables that a query, or the body of a function, mentions without a tie to one tenant."""
    reader = _Reader(tables)
    for statement in _statements(text):
        reader.read(statement, None)
    reader.settle()
    return {mention.table for mention in reader.mentions() if mention.table is not None and not mention.is_tied}


def _statements(text: str) -> Iterator[Group]:
    """Yield the statements of a text, apart from the words of PL/pgSQL before them."""
    statement, cases = Group(), 0
    for token in [*_grouped([token for token in _TOKEN.findall(text) if not token.startswith("--")]), ";"]:
        cases += {"CASE": 1, "END": -1}.get(token, 0) if isinstance(token, str) and (cases or token == "CASE") else 0
        if token == ";" or (not cases and token in ("BEGIN", "THEN", "ELSE", "LOOP")):
            yield statement
            statement, cases = Group(), 0
        else:
            statement.append(token)


def _grouped(tokens: Sequence[str]) -> Group:
    stack = [Group()]
    for token in tokens:
        if token == "(":
            stack.append(Group())
        elif token == ")":
            group = stack.pop()
            stack[-1].append(group)
        else:
            stack[-1].append(token)
    return stack[0]


class _Reader:
    """What one text mentions, and what ties its mentions together."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._parts: list[Part] = []
        self._queries: dict[Group, list[Part]] = {}
        self._bound: list[tuple[Mention, str]] = []
        self._returned: list[tuple[str, str]] = []
        self._known: set[str] = set()

    def mentions(self) -> Iterator[Mention]:
        """Yield everything that was mentioned."""
        for part in self._parts:
            yield from part.mentions.values()

    def read(self, statement: Group, around: Part | None, found: list[Part] | None = None) -> list[Part]:
        """Read a statement; return its parts, which UNION and the like separate."""
        found = [] if found is None else found
        self._queries[statement] = found
        piece = Group()
        for token in [*statement, "UNION"]:
            if token not in _SETS:
                piece.append(token)
                continue
            part = Part(around)
            self._parts.append(part)
            found.append(part)
            self._read_part(piece, part)
            if part.ctes:  # which the parts after it know, too
                around = part
            piece = Group()
        return found

    def _read_part(self, tokens: Group, part: Part) -> None:
        if "WITH" in tokens and "ORDINALITY" not in tokens[: tokens.index("WITH") + 2]:
            tokens = self._read_ctes(tokens, part)
        tokens = self._without_joined(tokens)
        self._read_sources(tokens, part)
        self._read_inner(tokens, part)
        self._read_conditions(tokens, part)
        if "INTO" in tokens and "INSERT" not in tokens:
            part.fills.add(str(tokens[tokens.index("INTO") + 1]))
        elif tokens[:1] == ["FOR"]:
            part.fills.add(str(tokens[1]))
        elif tokens[1:2] == [":="] and len(tokens) == 4 and isinstance(tokens[3], Group) and tokens[3]:
            self._returned.append((str(tokens[0]), str(tokens[3][0])))  # by a function, for its first argument

    def _read_ctes(self, tokens: Group, part: Part) -> Group:
        """Read the CTEs of a statement; return what comes after them."""
        at = tokens.index("WITH") + 1
        name = ""
        while at < len(tokens) and tokens[at] not in _VERBS:
            token = tokens[at]
            if isinstance(token, Group) and token.is_query:
                part.ctes[name] = []  # which its parts may name, too
                self.read(token, part, part.ctes[name])
            elif isinstance(token, str) and token not in ("RECURSIVE", "AS", "NOT", "MATERIALIZED", ","):
                name = token
            at += 1
        return Group([*tokens[: tokens.index("WITH")], *tokens[at:]])

    def _without_joined(self, tokens: Group) -> Group:
        """Return the tokens with the parentheses around joins taken away."""
        flat = Group()
        for token in tokens:
            if (
                isinstance(token, Group)
                and "JOIN" in token
                and not token.is_query
                and flat[-1:]
                and flat[-1] == "JOIN"
            ):
                flat.extend(self._without_joined(token))
            else:
                flat.append(token)
        return flat

    def _read_sources(self, tokens: Group, part: Part) -> None:
        is_list = False
        for at, token in enumerate(tokens):
            following = tokens[at + 1] if at + 1 < len(tokens) else ";"
            before = tokens[at - 1] if at else ";"
            is_insert = token == "INTO" and before == "INSERT"
            if (
                (token in _SOURCES and before != "DISTINCT")
                or (token == "UPDATE" and before not in ("FOR", "KEY", "DO"))
                or (token == "," and is_list)
                or is_insert
            ):
                is_list = not is_insert
                start = at + 1
                while start < len(tokens) and tokens[start] in ("LATERAL", "ONLY"):
                    start += 1
                if following is not None and start < len(tokens):
                    self._source(tokens, start, part, is_insert)
            elif token in _CONDITIONS | _CLAUSES:
                is_list = False

    def _source(self, tokens: Group, at: int, part: Part, is_insert: bool) -> None:
        """Note what stands at a place where rows come from or go to."""
        source = tokens[at]
        if isinstance(source, Group):
            parts = self.read(source, part) if source.is_query else ()
            mention = Mention(queries=parts if any(one.mentions for one in parts) else ())  # else values alone
        elif source in self._tables:
            mention = Mention(source)
        else:
            mention = Mention(queries=part.cte(source))
        alias = "" if isinstance(source, Group) else source
        for token in tokens[at + 1 : at + 6]:
            if isinstance(token, Group):
                if is_insert:
                    mention.is_tied = "tenant_id" in token
                    break
            elif token not in ("AS", "WITH", "ORDINALITY"):
                if token not in _RESERVED and re.fullmatch(r"\w+", token):
                    alias = token
                    if is_insert:
                        continue
                break
        part.mentions[alias] = mention

    def _read_inner(self, tokens: Group, part: Part) -> None:
        for token in tokens:
            if isinstance(token, Group) and token not in self._queries:
                if token.is_query:
                    self.read(token, part)
                else:
                    self._read_inner(token, part)

    def _read_conditions(self, tokens: Group, part: Part) -> None:
        region: Group | None = None
        for token in [*tokens, "WHERE"]:
            if token in _CONDITIONS | _CLAUSES | _JOINS | _SOURCES:
                if region is not None:
                    self._compare(region, part)
                region = Group() if token in _CONDITIONS else None
            elif region is not None:
                region.append(token)

    def _compare(self, region: Group, part: Part) -> None:
        """Note the comparisons of a condition that must hold."""
        if "OR" in region or "CASE" in region:
            return
        for at, token in enumerate(region):
            before = region[at - 1] if at else "AND"
            follows = [*region[at + 1 : at + 3], ";", ";"]
            if isinstance(token, Group) and not token.is_query and before == "AND":
                self._compare(token, part)
            elif token in ("=", "IN") and before != "NOT":
                other = follows[1] if follows[0] == "ANY" else follows[0]
                self._equal(before, other, part)
                self._equal(other, before, part)

    def _equal(self, one: str | Group, other: str | Group, part: Part) -> None:
        if isinstance(one, Group):
            return
        mention, column = self._column(one, part)
        if mention is None or mention.table is None:
            return
        if isinstance(other, Group) and not other.is_query and len(other) == 1:
            (other,) = other
        if column == "tenant_id":
            theirs = self._column(other, part)[0] if isinstance(other, str) else None
            if theirs is not None and theirs.has_rows:
                mention.links.append(theirs)
            else:
                mention.is_tied |= isinstance(other, str) or set(other) == _OWN_OR_SHARED
        elif column in self._tables[mention.table]:
            self._reach(mention, other, part)

    def _reach(self, mention: Mention, other: str | Group, part: Part) -> None:
        """Note what a key is equal to."""
        if isinstance(other, Group):
            mention.links.append(self._queries.get(other, ()))
            return
        theirs, column = self._column(other, part)
        if theirs is None and re.match(r"[a-z_]", other):
            variable = other.partition(".")[0]
            mention.links.append(variable)
            self._bound.append((mention, variable))
        elif theirs is not None and (theirs.table is None or column in self._tables[theirs.table]):
            mention.links.append(theirs)

    def _column(self, name: str, part: Part) -> tuple[Mention | None, str]:
        """Return what a column belongs to, None for a variable, and its name there."""
        alias, dot, column = name.rpartition(".")
        if dot:
            return part.mention(alias), column
        for around in part.outwards():
            here = [mention for mention in around.mentions.values() if name in self._columns(mention)]
            if here:
                return (here[0] if len(here) == 1 else None), name
        return None, name

    def _columns(self, mention: Mention) -> frozenset[str]:
        """Return the columns of a table that tie it to others."""
        return frozenset() if mention.table is None else self._tables[mention.table] | {"tenant_id"}

    def settle(self) -> None:
        """Tie what is linked to what is tied, until nothing more follows."""
        before = -1
        while before != (before := len(self._known) + sum(mention.is_tied for mention in self.mentions())):
            for mention in self.mentions():
                if mention.table is None:
                    mention.is_tied = bool(mention.queries) and self._are_tied(mention.queries)
                elif not mention.is_tied:
                    mention.is_tied = any(self._ties(link) for link in mention.links)
            for part in self._parts:
                if part.fills and self._are_tied([part]):
                    self._known |= part.fills
            self._known |= {variable for mention, variable in self._bound if mention.is_tied}
            self._known |= {variable for variable, argument in self._returned if argument in self._known}

    def _ties(self, link: Mention | str | Sequence[Part]) -> bool:
        if isinstance(link, Mention):
            return link.is_tied
        return link in self._known if isinstance(link, str) else self._are_tied(link)

    @staticmethod
    def _are_tied(parts: Sequence[Part]) -> bool:
        """Whether what is mentioned is tied, apart from a recursion's mention of itself, and there is something."""
        found = []
        for part in parts:
            known = [mention for mention in part.mentions.values() if mention.has_rows]
            if not any(mention.queries is parts for mention in known):
                found += known
        return bool(found) and all(mention.is_tied for mention in found)
