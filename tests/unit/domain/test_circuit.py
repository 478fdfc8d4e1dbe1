"""The circuit breaker of a provider, by a clock of the test's."""

from __future__ import annotations

from shared.domain.models.circuit import Circuit, CircuitState


def opened() -> Circuit:
    circuit = Circuit()
    for at in range(5):
        assert circuit.admits(at)
        circuit.ended(at, failed=True)
    assert circuit.state is CircuitState.OPEN
    return circuit


def test_five_failures_in_a_row_open_it_for_a_minute() -> None:
    circuit = opened()

    assert not circuit.admits(63.9)
    assert circuit.seconds_left(44) == 20
    assert circuit.admits(64)


def test_a_success_between_failures_begins_anew() -> None:
    circuit = Circuit()
    for failed in [True] * 4 + [False] + [True] * 4:
        assert circuit.admits(0)
        circuit.ended(0, failed=failed)

    assert circuit.state is CircuitState.CLOSED


def test_two_probes_at_once_and_no_third() -> None:
    circuit = opened()

    assert [circuit.admits(70) for _ in range(3)] == [True, True, False]
    circuit.ended(71, failed=False)
    assert not circuit.admits(71), "one has succeeded, one is under way"
    circuit.ended(72, failed=False)
    assert (circuit.state, circuit.admits(72)) == (CircuitState.CLOSED, True)


def test_a_failed_probe_opens_it_again_and_a_given_up_one_makes_room() -> None:
    circuit = opened()

    assert circuit.admits(70)
    circuit.ended(71, failed=True)
    assert not circuit.admits(100)
    assert [circuit.admits(131) for _ in range(3)] == [True, True, False]
    circuit.let_go()
    assert circuit.admits(132)
