"""A provider that takes no conversation that another might refuse: OpenAI's, Google's and Mistral's rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.integration.llm.wire import Reply, WireServer


def defects(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is wrong with the messages of a chat completion."""
    waiting: list[str] = []
    seen: set[str] = set()
    spoken = [message for message in messages if message["role"] != "system"]
    if spoken and spoken[0]["role"] != "user":
        yield f"the conversation begins with a message of the role {spoken[0]['role']}"
    if len(messages) - len(spoken) > 1:
        yield "there are several system messages"
    for number, message in enumerate(messages):
        if number and message["role"] == messages[number - 1]["role"] != "tool":
            yield f"message {number} has the role {message['role']} of the one before"
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield f"message {number} answers no call"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield f"message {number} comes before the calls {waiting} are answered"
        calls = [call["id"] for call in message.get("tool_calls") or ()]
        if set(calls) & seen or len(set(calls)) < len(calls):
            yield f"message {number} repeats the id of a call"
        seen |= set(calls)
        waiting = calls
    if waiting:
        yield f"the calls {waiting} are not answered"


class StrictServer(WireServer):
    """Answers 400, and says why, where a conversation has defects; `refused` lists them."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def next_reply(self, asked: Any) -> Reply:
        found = list(defects(asked["messages"]))
        if found:
            self.refused += found
            return Reply({"error": {"message": "; ".join(found)}}, 400)
        return super().next_reply(asked)


@contextmanager
def strict_server() -> Iterator[StrictServer]:
    """Run a server for as long as the block lasts."""
    server = StrictServer()
    try:
        yield server
    finally:
        server.close()
