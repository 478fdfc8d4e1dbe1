"""What a worker publishes of its own configuration."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from planq.shared.kernel.states import Pool
from planq.shared.settings.settings import Settings
from planq.worker.container import provided_by

URL = "http://127.0.0.1:1/v1"


@pytest.mark.parametrize(
    ("env", "pool", "provided"),
    [
        ({}, Pool.IO, []),
        ({"PLANQ_PAYLOADS": "file:///large"}, Pool.CPU, ["payloads"]),
        ({"GROQ_API_KEY": "gsk-0123456789"}, Pool.CPU, []),
        ({"PLANQ_PAYLOADS": "file:///large", "GROQ_API_KEY": "gsk-0123456789"}, Pool.IO, ["payloads", "model groq"]),
        ({"ANTHROPIC_BASE_URL": URL}, Pool.IO, []),
        ({"VLLM_BASE_URL": URL}, Pool.IO, ["model vllm"]),
        ({"PLANQ_MODEL_SERVERS": f'{{"vllm@gpu": {{"base_url": "{URL}"}}}}'}, Pool.IO, ["model vllm@gpu"]),
    ],
)
def test_a_worker_publishes_what_its_settings_give_it(
    monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str], pool: Pool, provided: list[str]
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert provided_by(Settings(), pool) == provided
