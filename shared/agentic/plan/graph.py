"""The order of execution as a graph: which step waits for which.

`dependencies` derives it as design "Order of execution" says; the rest are questions about any such graph. A graph
is a sequence: element i holds the indices that step i waits for. Nothing recurses; all is linear in steps + edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from planq.shared.kernel.states import Effect
from planq.shared.platform.values.components import knots

MAX_EDGES = 200_000
"""Most edges of one plan's order. Only many unordered explicit writes before many derived reads come near: that
order is a complete bipartite graph, which has no smaller equivalent without steps of its own."""

Graph = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Node:
    """What the order of a step depends on.

    `inputs` are the steps it references (all earlier); `explicit` is its `depends_on`, None for a derived order.
    """

    effect: Effect
    inputs: Sequence[int] = ()
    explicit: Sequence[int] | None = None


def dependencies(nodes: Sequence[Node]) -> list[tuple[int, ...]] | None:
    """Return, for each step, the steps it waits for directly, sorted.

    The transitive closure is that of the order of execution: every step waits for the steps it references; with a
    derived order a read also waits for every earlier write, and a write for every earlier step; an explicit
    `depends_on` replaces the derived part, never the references, whose values the step cannot do without. Edges that
    others imply are left out, so that a derived order of n steps has O(n) of them.

    A cycle is possible, through an explicit dependency on a later step. None when there are more than `MAX_EDGES`.
    """
    order: list[tuple[int, ...]] = []
    # Every earlier step is reachable from `tips`, every earlier write from `writes`; both hold by induction: a step
    # leaves them only when the step that enters waits for it, directly or, for a derived write, through a tip.
    tips: set[int] = set()
    writes: set[int] = set()
    edges = 0
    for index, node in enumerate(nodes):
        waits = set(node.inputs)
        if node.explicit is not None:
            waits.update(node.explicit)
        elif node.effect.is_write:
            waits |= tips
            writes.clear()
        elif node.effect is Effect.READ:
            waits |= writes
        edges += len(waits)
        if edges > MAX_EDGES:
            return None
        order.append(tuple(sorted(waits)))
        tips -= waits
        tips.add(index)
        if node.effect.is_write:
            writes -= waits
            writes.add(index)
    return order


def dependents(graph: Graph) -> list[tuple[int, ...]]:
    """Return the graph turned round: for each step, the steps that wait for it directly, sorted."""
    turned: list[list[int]] = [[] for _ in graph]
    for index, waits in enumerate(graph):
        for earlier in waits:
            turned[earlier].append(index)
    return [tuple(steps) for steps in turned]


def topological_order(graph: Graph) -> list[int] | None:
    """Return all steps such that each comes after those it waits for; None for a cycle."""
    try:
        return list(TopologicalSorter(dict(enumerate(graph))).static_order())
    except CycleError:
        return None


def cycles(graph: Graph) -> list[tuple[int, ...]]:
    """Return every set of steps that wait for each other, each sorted, in order of their lowest step.

    These are the strongly connected components of more than one step, or of one that waits for itself.
    """
    if all(max(waits, default=-1) < step for step, waits in enumerate(graph)):
        return []  # nobody waits for a later step
    return sorted(tuple(sorted(knot)) for knot in knots(dict(enumerate(graph))))


def paths(graph: Graph) -> list[int]:
    """Return, for each step, how many steps there are on the longest way behind it.

    Precondition: no cycle (`topological_order` is not None).
    """
    is_in_order = all(max(waits, default=-1) < step for step, waits in enumerate(graph))
    order = range(len(graph)) if is_in_order else topological_order(graph)
    assert order is not None, "the graph has a cycle"
    length = [0] * len(graph)
    for step in reversed(order):
        for earlier in graph[step]:
            length[earlier] = max(length[earlier], length[step] + 1)
    return length
