"""Where the steps of a plan stand in its picture."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.plan.layout import PlanNode, finished_before, plan_layout


def test_a_step_stands_right_of_what_it_waits_for() -> None:
    found = plan_layout([(), (), (0, 1), (2,)], ["a", "b", "c", "d"])

    assert found.nodes == [
        *(PlanNode((0,), 0, 0), PlanNode((1,), 0, 1)),
        *(PlanNode((2,), 1, 0), PlanNode((3,), 2, 0)),
    ]
    assert found.edges == [(0, 2), (1, 2), (2, 3)]
    assert (found.columns, found.rows) == (3, 2)


def test_a_wide_fan_out_is_one_node() -> None:
    wide = 500
    graph = [(), *[(0,)] * wide, tuple(range(1, wide + 1))]
    found = plan_layout(graph, ["split", *["map"] * wide, "join"])

    assert [len(node.steps) for node in found.nodes] == [1, wide, 1]
    assert found.edges == [(0, 1), (1, 2)]


def test_rounds_stand_beside_each_other() -> None:
    found = plan_layout([(), (0,), (), (1,)], ["a", "b", "c", "d"], [0, 0, 1, 1])

    assert {node.steps: node.column for node in found.nodes} == {(0,): 0, (1,): 1, (2,): 2, (3,): 2}


def test_what_is_finished_with_all_before_it_can_be_one_node() -> None:
    graph = [(), (0,), (1,), (), (3,)]
    assert finished_before(graph, [True, True, False, False, True]) == [0, 1]
    assert finished_before([(0,)], [True]) == []


def test_a_column_of_many_different_steps_is_folded_by_what_they_call() -> None:
    chains = 40
    graph = [*[()] * chains, *[(index,) for index in range(chains)]]
    found = plan_layout(graph, ["a"] * chains + ["b"] * chains)

    assert [(len(node.steps), node.column) for node in found.nodes] == [(chains, 0), (chains, 1)]


def test_a_plan_with_a_cycle_has_no_picture() -> None:
    assert plan_layout([(1,), (0,)], ["a", "b"]).nodes == []
    assert plan_layout([], []).nodes == []


@given(st.lists(st.sets(st.integers(0, 30)), max_size=30))
def test_every_step_has_one_node_and_every_edge_leads_right(drawn: Sequence[set[int]]) -> None:
    graph = [tuple(sorted(one for one in waits if one < index)) for index, waits in enumerate(drawn)]
    found = plan_layout(graph, [index % 3 for index in range(len(graph))])

    assert sorted(index for node in found.nodes for index in node.steps) == list(range(len(graph)))
    places = [(node.column, node.row) for node in found.nodes]
    assert len(set(places)) == len(places)
    assert all(found.nodes[first].column < found.nodes[last].column for first, last in found.edges)
