"""The plan of a job as a picture: the figures that the SVG of its page is drawn by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from planq.api.page.words import line, step_state
from planq.shared.agentic.plan.layout import finished_before, plan_layout
from planq.shared.kernel.states import StepStatus

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _EDGE = 168, 46, 54, 20, 24
LEAST_FOLDED = 3
"""So many finished steps are worth a node of their own."""

_WORST_FIRST = ("bad", "ask", "run", "idle", "ok")
"""A node that stands for several steps shows the state that a person looks for first."""


def picture_of(steps: Sequence[dict[str, Any]], *, is_folded: bool = False) -> dict[str, Any] | None:
    """Return the nodes and edges of the picture of all rounds; None where there is nothing to be drawn.

    With `is_folded`, what is finished with all before it is one node. `foldable` says how many steps that are.
    """
    at = {step["index"]: place for place, step in enumerate(steps)}
    graph = [[at[one] for one in step["depends_on"] if one in at] for step in steps]
    finished = finished_before(graph, [step["status"] == StepStatus.SUCCEEDED for step in steps])
    groups = _groups(len(steps), finished if is_folded and len(finished) >= LEAST_FOLDED else [])
    group_of = {place: number for number, group in enumerate(groups) for place in group}
    folded = [
        sorted({group_of[one] for place in group for one in graph[place]} - {number})
        for number, group in enumerate(groups)
    ]
    rounds = [steps[group[-1]]["round"] for group in groups]
    if len(groups) < len(steps):
        rounds[0] = min(rounds[1:], default=0)
    layout = plan_layout(folded, [_name(group, steps) for group in groups], rounds)
    if not layout.nodes:
        return None
    nodes = [
        _node([steps[place] for number in node.steps for place in groups[number]], *_corner(node.column, node.row))
        for node in layout.nodes
    ]
    edges = [_edge(nodes[first], nodes[last]) for first, last in layout.edges]
    width, height = _corner(layout.columns, layout.rows)
    columns = {rounds[number]: node.column for node in reversed(layout.nodes) for number in node.steps}
    return {
        "nodes": nodes,
        "edges": edges,
        "width": width - _GAP_X + _EDGE,
        "height": height - _GAP_Y + _EDGE,
        "rounds": [{"number": number, "x": _corner(column, 0)[0]} for number, column in sorted(columns.items())]
        if len(columns) > 1
        else [],
        "foldable": len(finished) if len(finished) >= LEAST_FOLDED else 0,
        "is_folded": len(groups) < len(steps),
    }


def _groups(count: int, finished: Sequence[int]) -> list[tuple[int, ...]]:
    known = set(finished)
    return [*([tuple(finished)] if finished else []), *((place,) for place in range(count) if place not in known)]


def _name(group: Sequence[int], steps: Sequence[dict[str, Any]]) -> str:
    return str(steps[group[0]]["tool_name"]) if len(group) == 1 else ""


def _corner(column: int, row: int) -> tuple[int, int]:
    return _EDGE + column * (_WIDTH + _GAP_X), _EDGE + row * (_HEIGHT + _GAP_Y)


def _node(steps: Sequence[dict[str, Any]], x: int, y: int) -> dict[str, Any]:
    first = steps[0]
    states = [step_state(step) for step in steps]
    kind = min((state[0] for state in states), key=_WORST_FIRST.index)
    if len(steps) == 1:
        name, told = f"${first['index']} {first['tool_name']}", states[0][1]
    else:
        is_alike = all(step["tool_name"] == first["tool_name"] for step in steps)
        name = f"{len(steps)} × {first['tool_name']}" if is_alike else f"{len(steps)} steps"
        told = ", ".join(f"{count} {word.lower()}" for word, count in Counter(word for _, word in states).items())
    wanted = next(step for step, state in zip(steps, states, strict=True) if state[0] == kind)
    return {"x": x, "y": y, "kind": kind, "name": line(name, 22), "full": line(name), "told": line(told, 26)} | {
        "index": wanted["index"],
        "width": _WIDTH,
        "height": _HEIGHT,
    }


def _edge(first: dict[str, Any], last: dict[str, Any]) -> str:
    x, y, to_x, to_y = first["x"] + _WIDTH, first["y"] + _HEIGHT // 2, last["x"], last["y"] + _HEIGHT // 2
    middle = x + _GAP_X // 2
    return f"M{x} {y}C{middle} {y} {to_x - _GAP_X // 2} {to_y} {to_x} {to_y}"
