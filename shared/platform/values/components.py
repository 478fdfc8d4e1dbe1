"""Strongly connected components of a graph: its groups of nodes that all lead to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def knots(leads_to: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    """Yield the components of more than one node, and those of one that leads to itself."""
    return (group for group in components(leads_to) if len(group) > 1 or group[0] in leads_to[group[0]])


def components(leads_to: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    """Yield each component after those that it leads to, by Tarjan's algorithm without recursion."""
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    rest: dict[int, Iterator[int]] = {}
    unassigned: dict[int, None] = {}
    for start in leads_to:
        way = [start] if start not in order else []
        while way:
            node = way[-1]
            if node not in order:
                order[node] = lowest[node] = len(order)
                rest[node] = iter(leads_to[node])
                unassigned[node] = None
            for inner in rest[node]:
                if inner not in order:
                    way.append(inner)
                    break
                if inner in unassigned:
                    lowest[node] = min(lowest[node], lowest[inner])
            else:
                way.pop()
                if way:
                    lowest[way[-1]] = min(lowest[way[-1]], lowest[node])
                if lowest[node] == order[node]:
                    group: list[int] = []
                    while not group or group[-1] != node:
                        group.append(unassigned.popitem()[0])
                    yield group
