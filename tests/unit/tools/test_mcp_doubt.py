"""Which failures of an MCP call say that nothing happened (`tool_error`), and which leave that open."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from planq.shared.kernel.retry import may_have_taken_effect
from planq.shared.kernel.states import Effect, StepStatus
from planq.shared.platform.errors import (
    ExecutionFailed,
    InternalFault,
    InvalidArguments,
    InvalidOutput,
    ToolFailed,
    Transient,
    Unreached,
)
from planq.worker.tools import ToolError
from planq.worker.tools.mcp.definitions import answer_of
from planq.worker.tools.mcp.failures import call_failure
from planq.worker.tools.mcp.transport import NOT_SENT

DECLARED = {"type": "object", "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MCPError(types.INTERNAL_ERROR, "KeyError: 'id'"), InternalFault),
        (MCPError(types.METHOD_NOT_FOUND, "no such method"), ToolFailed),
        (MCPError(types.INVALID_PARAMS, "no such argument"), InvalidArguments),
        (MCPError(types.CONNECTION_CLOSED, "Connection closed"), Transient),
        (KeyError("what nobody foresaw"), InternalFault),
    ],
)
def test_a_fault_that_may_come_after_the_effect_is_no_refusal(
    error: Exception, expected: type[ExecutionFailed]
) -> None:
    assert type(call_failure(error, "bank", "pay", ())) is expected


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (MCPError(types.INTERNAL_ERROR, "ConnectError"), [NOT_SENT]),
        (MCPError(types.CONNECTION_CLOSED, "Connection closed"), [503, NOT_SENT]),
        (RuntimeError("Client must be used within an async context manager"), []),
    ],
)
def test_a_call_that_was_never_sent_has_no_effect(error: Exception, noted: list[int]) -> None:
    failure = call_failure(error, "bank", "pay", noted)

    assert type(failure) is Unreached
    assert not may_have_taken_effect(StepStatus.FAILED, Effect.UNSAFE, failure.code, is_begun=True, is_in_doubt=False)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"isError": True, "content": [{"type": "text", "text": "no money"}]}, ToolError),
        ({"isError": False, "content": [{"type": "text", "text": "paid"}]}, InvalidOutput),
    ],
)
def test_a_call_that_succeeded_without_its_output_is_no_refusal(
    result: dict[str, Any], expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        answer_of("pay", DECLARED, result, "a")
