"""Cassettes: what is recorded replays, and what is not says so."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planq.shared.agentic.models.call_settings import CallSettings
from planq.shared.agentic.models.exchange import Ask, Findings, ModelFailed, ModelReply, ToolCallRequest, TurnForm
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.steps import StepResult
from planq.shared.platform.errors import Misconfigured, ModelRefused, PolicyDenied
from planq.worker.models.cassette import Recorder, canonical_request, replay
from planq.worker.models.completion import Completion
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.request import ModelRequest, plan_request, respond_request, turn_request
from planq.worker.models.settings import ModelSettings

TOOLS = [ToolDefinition(name="calculate")]


def planned(text: str = "calculate 1+1", model: str = "offline") -> ModelRequest:
    return plan_request(Ask("job-1", text, model), TOOLS)


def responded(output: Any, text: str = "write") -> ModelRequest:
    return respond_request(
        Ask("job-1", text, "offline"), Findings(results=[StepResult("write_report", {}, output)]), 10_000
    )


def artifact(identity: str, executed_at: str, title: str = "T") -> dict[str, Any]:
    return {"artifact_id": identity, "artifact": {"title": title}, "_metadata": {"executed_at": executed_at}}


def ask(settings: ModelSettings, text: str, model: str = "") -> ModelReply:
    return asyncio.run(ModelGateway(settings).plan(Ask("job-1", text, model), TOOLS))


def test_what_one_gateway_records_another_replays(tmp_path: Path) -> None:
    path = tmp_path / "demo.jsonl"
    recorded = ask(ModelSettings(record_path=path), "calculate 1+1")

    replayed = ask(ModelSettings(default_model=f"cassette:{path}"), "calculate 1+1")

    assert (replayed.text, list(replayed.tool_calls)) == (recorded.text, list(recorded.tool_calls))
    assert replayed.call.model == f"cassette:{path}"
    assert replayed.call.cost_usd == 0


def test_a_structured_answer_replays_for_the_same_schema_only(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"

    def answered(settings: ModelSettings, schema: dict[str, Any]) -> ModelReply:
        asked = Ask("job-1", "Sum up", "", data={"n": 1}, answer_schema=schema, temperature=0.0)
        return asyncio.run(ModelGateway(settings).respond(asked, Findings(is_direct=True)))

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    recorded = answered(ModelSettings(record_path=path), schema)

    assert json.loads(recorded.text) == {"n": 1}
    assert answered(ModelSettings(default_model=f"cassette:{path}"), schema).text == recorded.text
    with pytest.raises(ModelFailed, match="no recording"):
        answered(ModelSettings(default_model=f"cassette:{path}"), {**schema, "required": []})


def test_tokens_and_raw_arguments_survive(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    calls = [ToolCallRequest("__planning__", "{broken"), ToolCallRequest("x", {"a": [1, "ü\ud800"]})]
    completion = Completion("text", calls, input_tokens=7, output_tokens=3, finish_reason="stop")

    Recorder(path).append("openai:gpt-5", planned(), completion)

    found = replay(str(path), planned())
    assert (found.text, list(found.tool_calls)) == ("text", calls)
    assert (found.input_tokens, found.output_tokens, found.finish_reason) == (7, 3, "stop")


def test_ids_and_times_of_a_run_do_not_matter_but_all_else_does() -> None:
    first = responded(artifact(str(uuid.uuid4()), "2026-01-01T10:00:00Z"))
    again = responded(artifact(str(uuid.uuid4()), "2027-12-31T23:59:59.123+01:00"))
    other = responded(artifact(str(uuid.uuid4()), "2026-01-01T10:00:00Z", title="U"))

    assert first != again
    assert canonical_request(first.to_json()) == canonical_request(again.to_json())
    assert canonical_request(first.to_json()) != canonical_request(other.to_json())


def test_the_models_name_is_no_part_of_the_request(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    Recorder(path).append("openai:gpt-5", planned(model="openai:gpt-5"), Completion("hi"))

    assert replay(str(path), planned(model="anthropic:claude-haiku-4-5")).text == "hi"


def test_the_last_recording_of_a_request_counts(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    for text in ("old", "new"):
        Recorder(path).append("offline", planned(), Completion(text))

    assert replay(str(path), planned()).text == "new"


def test_a_miss_names_the_file_and_the_closest_recording(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    recorder = Recorder(path)
    recorder.append("offline", planned("calculate 1+1"), Completion("a"))
    recorder.append("offline", planned("a wholly different question about something else"), Completion("b"))
    recorder.append("offline", responded({}, "calculate 1+2"), Completion("c"))

    with pytest.raises(ModelRefused) as caught:
        replay(str(path), planned("calculate 1+2"))

    message = caught.value.message
    assert message.startswith(f"cassette {path} has no recording of this plan request. The closest is line 1, which ")
    assert "(user): content: recorded 'calculate 1+1', now 'calculate 1+2'. If" in message
    assert message.endswith(f"planq record {path} -- COMMAND")


def test_a_miss_names_tools_and_fields_that_differ(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    ask = Ask("job-1", "hi", "offline")
    old = [ToolDefinition(name="calculate"), ToolDefinition(name="gone")]
    new = [ToolDefinition(name="calculate", description="Calculates."), ToolDefinition(name="fetch")]
    Recorder(path).append("offline", turn_request(ask, old, [], TurnForm.REACT), Completion("a"))

    with pytest.raises(ModelRefused) as caught:
        replay(str(path), turn_request(replace(ask, temperature=0.5), new, [], TurnForm.REACT))

    for said in (
        "the tool fetch: not recorded",
        "the tool gone: recorded, now missing",
        "the tool calculate: description: recorded '', now 'Calculates.'",
        "temperature: recorded 'null', now '0.5'",
    ):
        assert said in caught.value.message


def test_a_cassette_holds_no_credentials_and_replays_with_others(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    settings = CallSettings(extra_headers={"X-Team": "hush-1"})

    def request(key: str) -> ModelRequest:
        said = f'fetch https://me:{key}@a.example/?q=1&api_key={key} with "Authorization: Bearer {key}"'
        return plan_request(Ask("job-1", said, "offline", settings=settings), TOOLS)

    call = ToolCallRequest("x", {"password": "hush-3", "q": "own-hush-4"})
    Recorder(path, ["own-hush-4"]).append("offline", request("hush-2"), Completion("a", [call]))

    assert "hush" not in path.read_text()
    assert "a.example/?q=1" in path.read_text()
    assert replay(str(path), request("hush-5")).tool_calls[0].arguments == {"password": "…", "q": "…"}


def test_a_gateway_removes_its_own_keys(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    settings = ModelSettings(
        record_path=path, api_keys={"openai": "own-hush"}, base_urls={"openai": "http://a:mine-hush@b/"}
    )

    ask(settings, "say own-hush and mine-hush")

    assert "hush" not in path.read_text()


def test_models_that_jobs_name_reply_from_the_cassette_each_as_it_did(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    for model in ("openai:gpt-5", "mistral:small"):
        Recorder(path).append(model, planned("hello"), Completion(f"I am {model}"))
    settings = ModelSettings(default_model=f"cassette:{path}")

    for model in ("openai:gpt-5", "mistral:small"):
        assert ask(settings, "hello", model).text == f"I am {model}"
    assert ask(settings, "hello", "anthropic:claude").text == "I am mistral:small"
    assert "offline" in ask(settings, "hello", "offline").call.model


def test_a_cassette_without_such_requests_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    Recorder(path).append("offline", responded({}), Completion("c"))

    with pytest.raises(ModelRefused, match="none of its 1 exchanges is a plan request"):
        replay(str(path), planned())


@pytest.mark.parametrize(
    "line", ["not JSON", "[]", "{}", '{"version": 2, "recorded": {"purpose": "plan", "messages": []}, "reply": {}}']
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "c.jsonl"
    Recorder(path).append("offline", planned(), Completion("a"))
    with path.open("a") as file:
        file.write(f"\n{line}\n")

    with pytest.raises(ModelFailed, match="line 3: expected an exchange"):
        ask(ModelSettings(default_model=f"cassette:{path}"), "calculate 1+1")


def test_a_missing_cassette_is_named() -> None:
    with pytest.raises(ModelFailed, match=r"cannot read the cassette nowhere/c\.jsonl"):
        ask(ModelSettings(default_model="cassette:nowhere/c.jsonl"), "x")


def test_only_the_operators_cassette_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    Recorder(path).append("offline", planned("x"), Completion("a"))

    with pytest.raises(ModelFailed) as caught:
        ask(ModelSettings(), "x", model=f"cassette:{path}")

    assert isinstance(caught.value.error, PolicyDenied)


def test_a_record_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="cannot record model exchanges"):
        ModelGateway(ModelSettings(record_path=tmp_path / "missing" / "c.jsonl"))


def _record_many(path: str, worker: int) -> None:
    recorder = Recorder(Path(path))
    for number in range(50):
        recorder.append("offline", planned(f"{worker}-{number}"), Completion(f"{worker}-{number}" * 2_000))


def test_several_processes_record_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_record_many, args=(str(path), worker)) for worker in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0, 0, 0]
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    replies = {entry["reply"]["text"] for entry in entries}
    assert len(entries) == len(replies) == 150
    assert replay(str(path), planned("2-49")).text == "2-49" * 2_000
