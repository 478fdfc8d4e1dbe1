"""The circuit breaker of a model, by a clock of the test's."""

from __future__ import annotations

from planq.shared.agentic.models.circuit import Circuit, CircuitState


def opened() -> Circuit:
    circuit = Circuit()
    for at in range(5):
        assert circuit.admits(f"job-{at}", at)
        circuit.failed(f"job-{at}", at)
    assert circuit.state is CircuitState.OPEN
    return circuit


def test_a_job_that_fails_again_and_again_opens_nothing() -> None:
    circuit = Circuit()
    for at in range(100):
        assert circuit.admits("poison", at)
        circuit.failed("poison", at)
        assert circuit.admits("healthy", at)

    assert circuit.state is CircuitState.CLOSED


def test_five_different_jobs_in_a_row_open_it_and_a_success_between_begins_anew() -> None:
    circuit = Circuit()
    for number in range(4):
        circuit.failed(f"job-{number}", 0)
    circuit.succeeded()
    for number in range(4):
        circuit.failed(f"job-{number}", 0)

    assert circuit.state is CircuitState.CLOSED
    circuit.failed("job-4", 0)
    assert circuit.state is CircuitState.OPEN


def test_while_it_is_open_one_probe_goes_out_every_two_seconds() -> None:
    circuit = opened()  # the last failure was at 4

    assert not circuit.admits("job-5", 5.9)
    assert [circuit.admits(f"job-{n}", 6) for n in (5, 6)] == [True, False]
    circuit.failed("job-5", 60)
    assert circuit.admits("job-6", 60), "a probe that takes long holds up no other"


def test_the_job_that_failed_last_leaves_the_probe_to_another_and_probes_alone_where_none_comes() -> None:
    circuit = opened()

    assert not circuit.admits("job-4", 7.9)
    assert circuit.admits("job-3", 7.9)
    circuit.failed("job-3", 8)
    assert not circuit.admits("job-3", 11.8)
    assert circuit.admits("job-3", 12)


def test_the_first_success_closes_it() -> None:
    circuit = opened()

    assert circuit.admits("job-9", 6)
    circuit.succeeded()

    assert circuit.state is CircuitState.CLOSED
    assert [circuit.admits(f"job-{n}", 6) for n in range(5)] == [True] * 5
