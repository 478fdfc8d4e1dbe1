"""Turns questions of MCP servers into questions of a step, and answers back.

Since the protocol of 2026-07-28 a server answers a call with its questions and a state, and the call ends. A further
call continues it, from any worker. Everything that a server sends here is untrusted, bounded and checked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from planq.shared.agentic.schema.schemas import check_schema, is_deeper_than
from planq.shared.agentic.tools.contract import AsksPeople
from planq.shared.kernel.questions import (
    MAX_QUESTION_CHARS,
    QuestionAnswer,
    StepQuestion,
    declined_error,
)
from planq.shared.kernel.states import QuestionKind, QuestionStatus
from planq.shared.platform.errors import Misconfigured
from planq.shared.platform.values.encoding import encode
from planq.shared.subjects.tenants.secrecy import is_secret, secret_fields, texts_in
from planq.worker.tools.errors import ToolError

MAX_QUESTIONS = 20
"""Most questions that one step asks for its server."""

MAX_PER_RESULT = 10
MAX_SCHEMA_BYTES = 16 * 1024
MAX_SCHEMA_DEPTH = 8
MAX_STATE_BYTES = 64 * 1024
MAX_NEED_BYTES = 128 * 1024
MAX_URL_CHARS = 2_000

_TYPES = frozenset({"string", "number", "integer", "boolean", "array"})


@dataclass(frozen=True, slots=True)
class Resumption:
    """The continuation of a call: the answers by the server's keys, and its state, unchanged."""

    responses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    state: str | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """A server's questions by its keys, and its state; `calls_anew`: repeat the call once people have done it."""

    requests: Mapping[str, Mapping[str, Any]]
    state: str | None = None
    calls_anew: bool = False


class Conversation:
    """The questions of one call of a server's tool, over all attempts of its step; rebuilt in each."""

    def __init__(self, server: str, tool: str, people: AsksPeople | None, *, secret_forms: bool = False) -> None:
        """With `secret_forms` the operator lets this server ask for secrets in forms."""
        self._server = server
        self._tool = tool
        self._people = people
        self._secret_forms = secret_forms
        self._given = list(people.given()) if people is not None else []
        self._asked = len(self._given)
        self._answers = {answer.ordinal: answer for answer in self._given}
        self._secrets = {text for answer in self._given for text in _secrets_in(answer)}
        self._known: list[tuple[Mapping[str, Any], int]] = []

    def resumption(self) -> Resumption | None:
        """Return what the call goes on with, None where it begins; raises `AskingPerson` for what is still open."""
        last = self._given[-1] if self._given else None
        if last is None or not isinstance(last.state, Mapping) or "requests" not in last.state:
            return None
        need, answered = _need_of(last.state), dict(last.state["answered"])
        if need.calls_anew and not last.is_accepted:
            raise declined_error(last)
        return self._complete(need, {**answered, last.state["asked"]: last.ordinal})

    def forget(self) -> None:
        """Take note that the server has forgotten its state. Answers to forms serve the very same questions again."""
        if self.resumption() is None:
            return
        last = self._given[-1]
        requests = _need_of(last.state).requests
        answered = {**last.state["answered"], last.state["asked"]: last.ordinal}
        self._known = [(requests[key], ordinal) for key, ordinal in answered.items() if not _is_url(requests[key])]

    def put(self, need: Need) -> Resumption | None:
        """Ask people, or return if all is known; raise `AskingPerson`, or `ToolError` for a forbidden question."""
        self._check(need)
        known, self._known = self._known, []
        answered = {key: one for key, request in need.requests.items() for asked, one in known if asked == request}
        return self._complete(need, answered)

    def said_in_the_middle(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a question within a call (before protocol 2026-07-28); raise as `put`, and repeat the call."""
        for number, answer in enumerate(self._given):
            if isinstance(answer.state, Mapping) and answer.state.get("in_the_middle") == params:
                del self._given[number]
                return response_of(params, answer)
        self._check(Need({"": params}))
        return response_of(params, self._ask(params, {"in_the_middle": dict(params)}))

    def _complete(self, need: Need, answered: Mapping[str, int]) -> Resumption | None:
        for key, params in need.requests.items():
            if key not in answered:
                state = {
                    "requests": [[each, dict(asked)] for each, asked in need.requests.items()],
                    "answered": dict(answered),
                    "asked": key,
                    "state": need.state,
                    "calls_anew": need.calls_anew,
                }
                self._ask(params, state)
        if need.calls_anew:
            return None
        responses = {key: response_of(need.requests[key], self._answers[one]) for key, one in answered.items()}
        return Resumption(responses, need.state)

    def _ask(self, params: Mapping[str, Any], state: Mapping[str, Any]) -> QuestionAnswer:
        if self._people is None:
            raise ToolError(f"{self._what} asks a person something, and here nobody can be asked")
        details = {"server": self._server, "tool": self._tool}
        if not _is_url(params):
            question = StepQuestion(
                QuestionKind.FORM, params["message"], params["requestedSchema"], details=details, state=state
            )
        else:
            details["domain"] = urlsplit(params["url"]).hostname or ""
            question = StepQuestion(
                QuestionKind.URL, params["message"], url=params["url"], details=details, state=state
            )
        return self._people.answer_to(question)

    def _check(self, need: Need) -> None:
        if len(need.requests) > MAX_PER_RESULT or self._asked + len(need.requests) > MAX_QUESTIONS:
            raise ToolError(
                f"{self._what} asks too much: at most {MAX_PER_RESULT} questions at once, and {MAX_QUESTIONS} in all"
            )
        if fault := _unstorable(need, self._secrets):
            raise ToolError(f"{self._what} asks with {fault}")
        for params in need.requests.values():
            if fault := next(_faults(params, self._secret_forms), None):
                raise ToolError(f"{self._what} asks what cannot be put to a person: {fault}")

    @property
    def _what(self) -> str:
        return f"MCP server {self._server!r}, tool {self._tool!r},"


def response_of(params: Mapping[str, Any], answer: QuestionAnswer) -> dict[str, Any]:
    """Return an answer as the protocol has it (`ElicitResult`); of a form what its schema names, and nothing else."""
    if not answer.is_accepted:
        return {"action": "cancel" if answer.status is QuestionStatus.CANCELLED else "decline"}
    if _is_url(params):
        return {"action": "accept"}
    named = params["requestedSchema"].get("properties", {})
    content = answer.content if isinstance(answer.content, Mapping) else {}
    return {"action": "accept", "content": {key: value for key, value in content.items() if key in named}}


def _is_url(params: Mapping[str, Any]) -> bool:
    return params.get("mode") == "url"


def _need_of(state: Mapping[str, Any]) -> Need:
    return Need(dict(state["requests"]), state["state"], state["calls_anew"])


def _secrets_in(answer: QuestionAnswer) -> Iterator[str]:
    if answer.sealed_as is None or not isinstance(answer.content, Mapping):
        return
    state = answer.state
    params = state.get("in_the_middle") or _need_of(state).requests[state["asked"]]
    for name in secret_fields(params["requestedSchema"]):
        yield from texts_in(answer.content.get(name))


def _unstorable(need: Need, secrets: Collection[str]) -> str | None:
    """Return what keeps a need from being stored with a question and given back unchanged."""
    try:
        state, whole = encode(need.state), encode([need.state, dict(need.requests)])
    except (ValueError, RecursionError):
        return "what is no JSON"
    if len(state) > MAX_STATE_BYTES:
        return f"a state of more than {MAX_STATE_BYTES} bytes"
    if len(whole) > MAX_NEED_BYTES:
        return f"more than {MAX_NEED_BYTES} bytes"
    if any(encode(form)[1:-1] in whole for text in secrets for form in _forms_of(text)):
        return (
            "a state or a text that holds the secret of an earlier answer; it would be stored, so encrypt the state"
        )
    return "a null character, which cannot be stored" if b"\\u0000" in whole else None


def _forms_of(text: str) -> Iterator[str]:
    """Yield how a text may be written in a state: as it is, and within JSON, which may escape what is not ASCII."""
    yield text
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]


def _faults(params: Mapping[str, Any], secret_forms: bool) -> Iterator[str]:
    if len(params["message"]) > MAX_QUESTION_CHARS:
        yield f"its message has more than {MAX_QUESTION_CHARS} characters"
    if _is_url(params):
        yield from _faults_of_url(params["url"])
    else:
        yield from _faults_of_form(params["requestedSchema"], secret_forms)


def _faults_of_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        is_web = False
    is_plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url
    if not is_web or not is_plain or len(url) > MAX_URL_CHARS:
        yield f"expected an http(s) URL of at most {MAX_URL_CHARS} ASCII characters, without credentials"


def _faults_of_form(schema: Mapping[str, Any], secret_forms: bool) -> Iterator[str]:
    if is_deeper_than(schema, MAX_SCHEMA_DEPTH):
        yield f"its schema is nested more than {MAX_SCHEMA_DEPTH} levels deep"
    elif len(encode(schema)) > MAX_SCHEMA_BYTES:
        yield f"its schema has more than {MAX_SCHEMA_BYTES} bytes"
    else:
        try:
            check_schema(schema, "its schema", is_trusted=False)
        except Misconfigured as error:
            yield error.message
            return
        for name, described in schema.get("properties", {}).items():
            if not isinstance(described, Mapping) or described.get("type") not in _TYPES:
                yield f"{name[:100]!r}: expected a field of the type {', '.join(sorted(_TYPES))}"
            elif described["type"] == "array" and not _has_text_items(described):
                yield f"{name[:100]!r}: expected a list of texts"
            elif not is_secret(name, described, schema):
                continue
            elif not secret_forms:
                yield (
                    f"{name[:100]!r}: a form may not ask for a secret; the protocol has the URL mode for that. An "
                    'operator allows it by "secret_forms": true under "planq" of the server in mcp.json'
                )
            elif described["type"] != "string":
                yield f"{name[:100]!r}: expected a secret to be a text"


def _has_text_items(described: Mapping[str, Any]) -> bool:
    items = described.get("items")
    return isinstance(items, Mapping) and (items.get("type") == "string" or "anyOf" in items)
