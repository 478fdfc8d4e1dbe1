"""Where the steps of a plan stand in its picture: a column for each layer, and alike steps of a layer as one node.

The picture is read from left to right: a step stands right of all that it waits for. All is linear in steps + edges,
apart from sorting the nodes of a column.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from planq.shared.agentic.plan.graph import Graph, dependents, topological_order

_FOLDED_FROM = 6
"""So many steps of one layer that call the same and wait for the same are one node: a fan-out."""

_MOST_ROWS = 12
"""In a column of more nodes all that call the same are one."""


class PlanNode(NamedTuple):
    """One node of the picture: the steps that it stands for, and its place in columns and rows."""

    steps: tuple[int, ...]
    column: int
    row: int


class PlanLayout(NamedTuple):
    """The picture of a plan; edges are pairs of places in `nodes`."""

    nodes: list[PlanNode]
    edges: list[tuple[int, int]]
    columns: int
    rows: int


def plan_layout(graph: Graph, names: Sequence[Hashable], rounds: Sequence[int] = ()) -> PlanLayout:
    """Return the picture of a graph whose steps call these tools; one with a cycle has no picture, and no nodes.

    Where the round of each step is told, those of a later one stand right of all of an earlier one.
    """
    order = topological_order(graph)
    if order is None:
        return PlanLayout([], [], 0, 0)
    numbers = rounds or [0] * len(graph)
    layer = [0] * len(graph)
    for index in order:
        before = [layer[earlier] for earlier in graph[index] if numbers[earlier] == numbers[index]]
        layer[index] = max(before, default=-1) + 1
    layer = _beside_each_other(layer, numbers)
    after = dependents(graph)
    columns = [_folded(steps, graph, after, names) for steps in _by_layer(layer)]
    return _placed(columns, graph)


def _beside_each_other(layer: Sequence[int], rounds: Sequence[int]) -> list[int]:
    """Return the layers of steps so moved that each round begins right of the one before it."""
    widths: dict[int, int] = {}
    for one, number in zip(layer, rounds, strict=True):
        widths[number] = max(widths.get(number, 0), one + 1)
    starts = dict(zip(sorted(widths), accumulate(widths[number] for number in sorted(widths)), strict=True))
    return [starts[number] - widths[number] + one for one, number in zip(layer, rounds, strict=True)]


def finished_before(graph: Graph, done: Sequence[bool]) -> list[int]:
    """Return the steps that are done and wait only for such: they can be one node, and no cycle comes of it."""
    order = topological_order(graph)
    found: set[int] = set()
    for index in order or ():
        if done[index] and all(earlier in found for earlier in graph[index]):
            found.add(index)
    return sorted(found)


def _by_layer(layer: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for index, one in enumerate(layer):
        found[one].append(index)
    return found


def _folded(steps: Sequence[int], graph: Graph, after: Graph, names: Sequence[Hashable]) -> list[tuple[int, ...]]:
    """Return the nodes of a layer, each as the steps that it stands for."""
    alike = _groups(steps, {index: (names[index], tuple(graph[index]), after[index]) for index in steps})
    nodes = [one for group in alike for one in ([group] if len(group) >= _FOLDED_FROM else [(s,) for s in group])]
    if len(nodes) > _MOST_ROWS:
        return _groups(steps, {index: names[index] for index in steps})
    return sorted(nodes)


def _groups(steps: Sequence[int], keys: Mapping[int, Hashable]) -> list[tuple[int, ...]]:
    found: dict[Hashable, list[int]] = {}
    for index in steps:
        found.setdefault(keys[index], []).append(index)
    return [tuple(group) for group in found.values()]


def _placed(columns: Sequence[Sequence[tuple[int, ...]]], graph: Graph) -> PlanLayout:
    nodes: list[PlanNode] = []
    node_of: dict[int, int] = {}
    for column, groups in enumerate(columns):
        # A node stands beside what it waits for, so that few edges cross.
        rows = {
            group: fmean([nodes[node_of[one]].row for index in group for one in graph[index]] or [0])
            for group in groups
        }
        for row, group in enumerate(sorted(groups, key=lambda one: (rows[one], one))):
            node_of.update(dict.fromkeys(group, len(nodes)))
            nodes.append(PlanNode(group, column, row))
    pairs = {(node_of[one], node_of[index]) for index, waits in enumerate(graph) for one in waits}
    return PlanLayout(nodes, sorted(pairs), len(columns), max((len(groups) for groups in columns), default=0))
