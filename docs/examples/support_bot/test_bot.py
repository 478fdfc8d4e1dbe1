"""The bot's tests: its tool alone, its webhook, and the whole way from a visitor to planq and back."""

import asyncio
import base64
import json
from datetime import UTC, datetime

import orders
import pytest
from bot import ENDED, create_app
from fastapi.testclient import TestClient
from standardwebhooks import Webhook

from planq.testing import ScriptedModel, run_job

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


def test_the_model_is_shown_where_the_order_is() -> None:
    model = ScriptedModel(turns=[[("order_status", {"number": "7"})], "It is on its way."])
    run = run_job("Where is my order 7?", tools=orders, strategy="react", model=model)
    assert run.answer == "It is on its way."
    assert any("on its way" in message.content for message in model.asked[-1][1])


def test_an_unknown_order_is_told_to_the_model() -> None:
    assert asyncio.run(orders.order_status("8")) == "Order 8 is delivered."
    model = ScriptedModel(turns=[[("order_status", {"number": "9"})], "There is none."])
    run = run_job("Where is my order 9?", tools=orders, strategy="react", model=model)
    assert (run.steps[0]["status"], run.answer) == ("failed", "There is none.")


@pytest.mark.parametrize(
    ("secret", "status"), [(SECRET, 204), ("whsec_" + base64.b64encode(b"x" * 32).decode(), 401)]
)
def test_the_hook_believes_planq_alone(secret: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANQ_HOOK_SECRET", SECRET)
    body = json.dumps({"type": "job.completed", "data": {"id": secret}})
    now = datetime.now(UTC)
    signed = {
        "webhook-id": "m",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign("m", now, body),
    }
    with TestClient(create_app("http://127.0.0.1:1")) as web:
        assert web.post("/hooks/planq", content=body, headers=signed).status_code == status
    assert (secret in ENDED) == (status == 204)


def test_a_visitor_gets_an_answer(planq_server) -> None:
    with TestClient(create_app(planq_server.url)) as web:
        said = {"who": "ann", "text": 'call order_status with {"number": "7"}'}
        answered = web.post("/chat/visit-1", json=said).json()
    assert "Order 7 is on its way." in answered["text"]
