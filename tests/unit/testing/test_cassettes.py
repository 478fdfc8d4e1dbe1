"""A recorded model in tests of agents, and for their server."""

from __future__ import annotations

from pathlib import Path

import pytest

from planq import tool
from planq.deploy.cli.cassettes import record, replay
from planq.shared.platform.errors import Misconfigured
from planq.testing import Cassette, run_agent, run_job
from planq.testing.cassettes import replayed_model


@tool(effect="pure")
async def price_of(nights: int) -> int:
    """Return a price."""
    return nights * 80


AGENT = {"name": "clerk", "description": "Names prices.", "tools": ["price_of"], "model": "openai:gpt-5"}


def test_a_job_is_recorded_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, common = tmp_path / "own.jsonl", tmp_path / "common.jsonl"
    monkeypatch.setenv("PLANQ_RECORD", str(common))
    asked = 'call price_of with {"nights": 2}'
    recorded = run_job(asked, tools=[price_of], model=Cassette(own))
    run_job("hello", model=Cassette())
    monkeypatch.delenv("PLANQ_RECORD")

    model = Cassette(own)
    replayed = run_job(asked, tools=[price_of], model=model)

    assert replayed.answer == recorded.answer
    assert (len(model.asked), len(own.read_text().splitlines()), len(common.read_text().splitlines())) == (2, 2, 1)
    assert replayed.model is model
    monkeypatch.setenv("PLANQ_MODEL", f"cassette:{common}")
    assert run_job("hello", model=Cassette()).status == "completed"
    with pytest.raises(AssertionError, match="now 'good night'"):
        run_job("good night", model=Cassette())


def test_an_agents_own_model_is_what_a_cassette_replays(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text("")
    model = Cassette(path)

    with pytest.raises(AssertionError, match="none of its 0 exchanges is a plan request"):
        run_agent(AGENT, "hi", tools=[price_of], model=model)
    assert model.asked[0][0].model == "openai:gpt-5"


def test_a_cassette_needs_a_file() -> None:
    with pytest.raises(Misconfigured, match="expected the file of a cassette, found none: pass its path"):
        Cassette()


def test_a_server_of_the_tests_records_and_replays_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replayed_model("") == {}
    assert replayed_model("c") == {"PLANQ_MODEL": "cassette:c"}
    monkeypatch.setenv("PLANQ_MODEL", "cassette:a")
    assert replayed_model("") == {"PLANQ_MODEL": "cassette:a"}
    monkeypatch.setenv("PLANQ_MODEL", "openai:gpt-5")
    assert replayed_model("") == {}
    monkeypatch.setenv("PLANQ_RECORD", "b")
    assert replayed_model("") == {"PLANQ_MODEL": "openai:gpt-5", "PLANQ_RECORD": "b"}
    assert replayed_model("c")["PLANQ_RECORD"] == "c"


@pytest.mark.parametrize(
    ("command", "words", "model", "said"),
    [
        (record, ["pytest"], "cassette:x", "expected a model to record, found a cassette"),
        (record, ["--"], "", "expected a command after `--`, found none"),
        (record, ["--", "no-such-command"], "", "cannot run 'no-such-command'"),
        (replay, ["pytest"], "", "cannot read the cassette"),
    ],
)
def test_a_command_that_cannot_be_recorded_is_refused(
    command: object, words: list[str], model: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANQ_MODEL", model)
    with pytest.raises(Misconfigured, match=said):
        command(tmp_path / "c.jsonl", words)  # type: ignore[operator]
