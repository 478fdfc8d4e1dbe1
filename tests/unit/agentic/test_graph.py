"""The order of execution: design "Order of execution"."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.plan.graph import (
    MAX_EDGES,
    Node,
    cycles,
    dependencies,
    dependents,
    paths,
    topological_order,
)
from planq.shared.kernel.states import Effect

PURE, READ, WRITE = Effect.PURE, Effect.READ, Effect.UNSAFE


def order_of(*nodes: Node) -> list[tuple[int, ...]]:
    order = dependencies(nodes)
    assert order is not None
    return order


def specification(nodes: list[Node]) -> list[set[int]]:
    """Say the rule of the design in its own words, edge by edge."""
    edges: list[set[int]] = []
    for index, node in enumerate(nodes):
        waits = set(node.inputs)
        if node.explicit is not None:
            waits |= set(node.explicit)
        elif node.effect.is_write:
            waits |= set(range(index))
        elif node.effect is READ:
            waits |= {earlier for earlier in range(index) if nodes[earlier].effect.is_write}
        edges.append(waits)
    return edges


def closure(graph: list[set[int]]) -> list[set[int]]:
    reach = [set(waits) for waits in graph]
    changed = True
    while changed:
        changed = False
        for waits in reach:
            further = set().union(*(reach[step] for step in waits)) - waits
            if further:
                waits |= further
                changed = True
    return reach


@st.composite
def plans(draw: st.DrawFn) -> list[Node]:
    size = draw(st.integers(1, 9))
    nodes = []
    for index in range(size):
        inputs = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        explicit = draw(st.none() | st.none() | st.sets(st.integers(0, size - 1), max_size=3))
        nodes.append(Node(draw(st.sampled_from(Effect)), tuple(inputs), explicit and tuple(explicit)))
    return nodes


def test_reads_run_together_and_writes_keep_their_order() -> None:
    assert order_of(Node(READ), Node(READ), Node(PURE), Node(WRITE), Node(READ), Node(PURE), Node(WRITE)) == [
        (),
        (),
        (),
        (0, 1, 2),
        (3,),
        (),
        (4, 5),
    ]


def test_an_explicit_order_replaces_the_derived_one_but_never_the_references() -> None:
    assert order_of(Node(WRITE), Node(WRITE, (0,), ()), Node(WRITE, (), ()), Node(READ)) == [(), (0,), (), (1, 2)]


@given(plans())
def test_the_closure_equals_the_specification(nodes: list[Node]) -> None:
    order = order_of(*nodes)
    assert closure([set(waits) for waits in order]) == closure(specification(nodes))


@given(plans())
def test_order_and_cycles_exclude_each_other(nodes: list[Node]) -> None:
    order = order_of(*nodes)
    sequence = topological_order(order)
    knots = cycles(order)
    reach = closure([set(waits) for waits in order])
    assert {step for knot in knots for step in knot} == {step for step in range(len(nodes)) if step in reach[step]}
    assert (sequence is None) == bool(knots)
    if sequence is not None:
        place = {step: position for position, step in enumerate(sequence)}
        assert sorted(sequence) == list(range(len(nodes)))
        assert all(place[earlier] < place[step] for step in place for earlier in order[step])
        behind = paths(order)
        for step, later in enumerate(dependents(order)):
            assert behind[step] == max((1 + behind[one] for one in later), default=0)


@given(plans())
def test_dependents_is_the_graph_turned_round(nodes: list[Node]) -> None:
    order = order_of(*nodes)
    assert {(step, earlier) for step, waits in enumerate(order) for earlier in waits} == {
        (step, earlier) for earlier, later in enumerate(dependents(order)) for step in later
    }


@pytest.mark.parametrize("effects", [[WRITE], [READ, WRITE], [READ, READ, PURE, WRITE, READ], [PURE], [READ]])
def test_ten_thousand_derived_steps_have_a_linear_number_of_edges(effects: list[Effect]) -> None:
    nodes = [Node(effects[index % len(effects)]) for index in range(10_000)]
    started = time.process_time()
    order = order_of(*nodes)
    assert sum(map(len, order)) <= 2 * len(nodes)
    assert topological_order(order) is not None
    assert time.process_time() - started < 10  # of CPU: 0.2 s here, and minutes with an edge for each pair


def test_an_order_without_a_small_form_is_refused() -> None:
    writes, reads = [Node(WRITE, (), ())] * 1_000, [Node(READ)] * (MAX_EDGES // 1_000 + 1)
    assert dependencies(writes + reads) is None
    assert dependencies(writes + reads[:-1]) is not None


def test_a_cycle_of_many_thousand_steps_is_found_without_recursion() -> None:
    ring = [((index + 1) % 50_000,) for index in range(50_000)]
    assert topological_order(ring) is None
    assert cycles(ring) == [tuple(range(50_000))]
    assert cycles([(0,), (), (3,), (2,)]) == [(0,), (2, 3)]
