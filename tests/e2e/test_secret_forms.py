"""What a person gives a form as a secret reaches the tool that asked, and nothing else that planq writes or tells."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.test_main_job import plan
from tests.e2e.test_mcp import write_config
from tests.e2e.test_secrets import kept, stored
from tests.integration.tools.mcp_probe import SERVERS
from tests.support.receiver import receiving
from tests.support.stack import Stack
from tests.support.waiting import eventually

KEY, PIN, WRONG = "sk-live-4711-abcdef", "pin-0815-ghijkl", "sk-x77"
MASTER = b64encode(b"a-master-key-that-has-32-bytes!!").decode()


def question_of(http: httpx.Client, job_id: str, message: str) -> dict[str, Any]:
    def asked() -> dict[str, Any] | None:
        items = http.get("/elicitations", params={"status": "open", "job": job_id}).json()["items"]
        return next((one for one in items if one["message"] == message), None)

    found: dict[str, Any] = eventually(asked, 60, what=f"the question {message!r}")
    return found


def by_page(http: httpx.Client, question: dict[str, Any], **fields: str) -> str:
    """Answer a question on the inbox; return the page on which it was asked."""
    page = http.get("/ui/elicitations").text
    token = re.search(r'name="token" value="([0-9a-f]{64})"', page)
    assert token is not None
    form = {"token": token[1], "from": "inbox", "action": "accept"}
    form |= {f"field.{name}": value for name, value in fields.items()}
    answer = http.post(f"/ui/elicitations/{question['id']}", data=form, headers={"Origin": str(http.base_url)})
    assert answer.status_code in (200, 303), answer.text
    return page


def test_a_secret_is_found_nowhere_but_in_the_tool_that_asked(
    make_stack: Callable[..., Stack], database_url: str, valkey_url: str, tmp_path: Path
) -> None:
    asker = {"command": sys.executable, "args": [str(SERVERS / "asker.py")], "env": {"ASKER_FOLDER": str(tmp_path)}}
    with receiving() as receiver:
        env = {
            "PLANQ_SECRET_KEYS": MASTER,
            "PLANQ_LOG_LEVEL": "DEBUG",
            "PLANQ_TOOLS": "tests.support.secret_tools",
            "PLANQ_MCP_FILE": write_config(tmp_path, s={**asker, "planq": {"secret_forms": True}}),
            "PLANQ_WEBHOOK_ALLOW_HOSTS": receiver.host,
        }
        stack = make_stack(database_url, valkey_url, env=env)
        stack.start()
        broker = valkey_url.replace("redis+socket://", "unix://").partition("?")[0]
        with httpx.Client(base_url=stack.url, timeout=30) as http:
            wanted = {"s_login", "sign_up"}
            eventually(lambda: wanted <= {one["name"] for one in http.get("/tools").json()["items"]}, 60)
            calls = plan(("s_login", {}), ("sign_up", {"folder": str(tmp_path)}))
            job_id = http.post("/jobs", json={"plan": calls, "callback_url": receiver.url}).json()["id"]
            told: list[str] = []

            login = question_of(http, job_id, "Who are you?")
            assert login["is_secret"]
            wrong = {"action": "accept", "content": {"user": "ada", "api_key": WRONG}}
            refused = http.post(f"/elicitations/{login['id']}", json=wrong)
            assert refused.status_code == 422
            told.append(refused.text)
            page = by_page(http, login, user="ada", api_key=KEY)
            assert re.search(r'name="field.api_key" type="password" autocomplete="off"', page)
            assert re.search(r'<textarea[^>]* name="field.user"', page)
            # The server's next question is stored beside the first answer.
            where = question_of(http, job_id, "Where to?")
            told += [stored(database_url), http.get("/ui/elicitations").text]
            assert sealed(database_url) == 1
            http.post(f"/elicitations/{where['id']}", json={"action": "accept", "content": {"city": "Pisa"}})

            pin = question_of(http, job_id, "Choose a PIN.")
            answer = http.post(
                f"/elicitations/{pin['id']}", json={"action": "accept", "content": {"user": "ada", "pin": PIN}}
            )
            assert answer.json()["content"] == {"user": "ada", "pin": "***"}
            eventually((tmp_path / "begun").exists, 60, what="the tool has the PIN")
            told += [answer.text, stored(database_url), kept(broker)]
            (tmp_path / "go").touch()

            job = eventually(lambda: (one := http.get(f"/jobs/{job_id}").json())["finished_at"] and one, 60)
            assert [step["status"] for step in job["steps"]] == ["succeeded"] * 2, job
            assert job["steps"][0]["output"] == {"text": "ada has signed in with …"}
            expected = {"user": "ada", "echo": "your PIN is …", "sha256": sha256(PIN.encode()).hexdigest()}
            assert job["steps"][1]["output"] == expected
            assert sealed(database_url) == 0, "what was sealed is erased with the end of its step"
            eventually(lambda: receiver.seen, 60, what="the callback")

            paths = (f"/jobs/{job_id}", f"/jobs/{job_id}/elicitations", f"/ui/jobs/{job_id}", "/jobs", "/metrics")
            answers = {path: http.get(path) for path in paths}
            assert {answer.status_code for answer in answers.values()} == {200}
            contents = [one["content"] for one in answers[paths[1]].json()["items"]]
            assert {"user": "ada", "api_key": "***"} in contents
            told += [answer.text for answer in answers.values()]
            told += [stored(database_url), kept(broker), str([one.body for one in receiver.seen])]
            told += [stack.log(name).read_text() for name in stack.processes]

    calls_of_server = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text("utf-8").splitlines()]
    assert calls_of_server[-1]["responses"]["a"]["content"] == {"user": "ada", "api_key": KEY}
    whole = "\n".join(told)
    for secret in (KEY, PIN, WRONG):
        assert secret not in whole
        assert b64encode(secret.encode()).decode().rstrip("=") not in whole


def sealed(database_url: str) -> int:
    return stored(database_url).count('"name":"answer/')
