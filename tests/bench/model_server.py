"""A model for ParallelQA: a small HTTP server in a process of its own that speaks OpenAI's chat completions.

It answers every request after the same time, whole or as a stream, as it is asked; what it says is canned. A request
that offers planq's planning tool gets the plan, one that offers the tools themselves the next action of a ReAct loop,
one that offers none the answer; one that asks what it does not know is answered with 500.
`python -m tests.bench.model_server` prints its port and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planq.shared.agentic.plan.interpret import PLANNING_TOOL_NAME
from tests.bench.parallelqa import MODEL_SECONDS, SEARCH, Question, next_action, plan_calls, questions

Json = dict[str, Any]

_USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
_HEAD = {"id": "chatcmpl-bench", "created": 1_700_000_000, "model": "parallelqa"}


def message_for(asked: Mapping[str, Any], known: Mapping[str, Question]) -> Json:
    """Return the assistant's message to a request; `known` are the questions by their text. Raises `KeyError`."""
    messages: Sequence[Json] = asked["messages"]
    question = known[next((m["content"] for m in messages if m["role"] == "user" and m["content"] in known), "")]
    offered = {tool["function"]["name"] for tool in asked.get("tools", ())}
    if PLANNING_TOOL_NAME in offered:
        return _calling(
            PLANNING_TOOL_NAME,
            {"type": "tool_calls", "reasoning": "Look up and compare.", "calls": plan_calls(question)},
        )
    if SEARCH in offered:
        observed = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
        action = next_action(question, observed)
        if action is not None:
            return _calling(*action)
    return {"role": "assistant", "content": question.answer}


def _calling(name: str, arguments: Json) -> Json:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def whole(message: Json) -> bytes:
    """Return a message as one chat completion."""
    choice = {"index": 0, "finish_reason": _finish(message), "message": message}
    return json.dumps({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE}).encode()


def streamed(message: Json) -> bytes:
    """Return a message as the events of a stream."""
    events = [json.dumps({**_HEAD, "object": "chat.completion.chunk", **event}) for event in _chunks(message)]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


def _chunks(message: Json) -> Iterator[Json]:
    delta = {**message, "tool_calls": [{**call, "index": 0} for call in message.get("tool_calls", ())]}
    yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": _finish(message)}]}
    yield {"choices": [], "usage": _USAGE}


def _finish(message: Json) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


async def _converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, known: Mapping[str, Question]
) -> None:
    """Answer the requests of one connection until the client leaves."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            asked = json.loads(await reader.readexactly(length))
            until = loop.time() + MODEL_SECONDS
            try:
                message = message_for(asked, known)
            except KeyError:
                writer.write(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n")
                continue
            is_stream = bool(asked.get("stream"))
            body = streamed(message) if is_stream else whole(message)
            kind = "text/event-stream" if is_stream else "application/json"
            await asyncio.sleep(until - loop.time())
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode())
            writer.write(body)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve() -> None:
    """Print the port, and answer until this process is ended."""
    known = {question.text: question for question in questions()}
    server = await asyncio.start_server(lambda r, w: _converse(r, w, known), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - whoever started this reads it
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
