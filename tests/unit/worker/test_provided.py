"""What a worker publishes of its own configuration."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from planq.shared.kernel.states import Lane
from planq.shared.settings.settings import Settings
from planq.worker.container import provided_by

URL = "http://127.0.0.1:1/v1"


@pytest.mark.parametrize(
    ("env", "lane", "provided"),
    [
        ({}, Lane.IO, []),
        ({"PLANQ_PAYLOADS": "file:///large"}, Lane.CPU, ["payloads"]),
        ({"GROQ_API_KEY": "gsk-0123456789"}, Lane.CPU, []),
        ({"PLANQ_PAYLOADS": "file:///large", "GROQ_API_KEY": "gsk-0123456789"}, Lane.IO, ["payloads", "model groq"]),
        ({"ANTHROPIC_BASE_URL": URL}, Lane.IO, []),
        ({"VLLM_BASE_URL": URL}, Lane.IO, ["model vllm"]),
        ({"PLANQ_MODEL_SERVERS": f'{{"vllm@gpu": {{"base_url": "{URL}"}}}}'}, Lane.IO, ["model vllm@gpu"]),
    ],
)
def test_a_worker_publishes_what_its_settings_give_it(
    monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str], lane: Lane, provided: list[str]
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert provided_by(Settings(), lane) == provided
