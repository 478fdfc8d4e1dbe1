"""What a call asks of its tenant's secrets, which stand in nothing that is stored or shown of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from planq.shared.domain.errors import AuthFailed, ExecutionFailed, Misconfigured, PlanqError
from planq.shared.domain.jobs.elicitations import Elicitation
from planq.shared.domain.redact import without
from planq.shared.ports import BytesArtifact, RichOutput, Suspended
from planq.worker.engine.persist import persist

SecretsOf = Callable[[str, str], Awaitable[str | None]]
"""Returns the secret of a tenant under a name, None for none; raises `Misconfigured` where it cannot be opened."""


async def no_secrets(tenant_id: str, name: str) -> str | None:
    """Return None: nobody has any (`SecretsOf`)."""
    return None


class CallSecrets:
    """The secrets of one call's tenant (`planq.shared.ports.tools.KeepsSecrets`); make it on the event loop.

    It remembers those that it has given, and hides them in what the call comes to.
    """

    def __init__(self, tenant_id: str, secrets: SecretsOf) -> None:
        self._tenant_id = tenant_id
        self._secrets = secrets
        self.given: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def get(self, name: str) -> str | None:
        """Return a secret, as soon as the database answers; raises `AuthFailed` for one that cannot be opened."""
        try:
            text = await persist(self._secrets, self._tenant_id, name)
        except Misconfigured as error:
            raise AuthFailed(error.message) from error
        if text is not None:
            self.given.add(text)
        return text

    def get_from_thread(self, name: str) -> str | None:
        """Do what `get` does, in a thread of the call."""
        if threading.get_ident() == self._thread:
            raise RuntimeError("secret_sync() stands on the event loop, which it would block: await secret()")
        return asyncio.run_coroutine_threadsafe(self.get(name), self._loop).result()

    def hidden_in(self, answer: Any) -> Any:
        """Return what a tool answered without what it was given."""
        if not self.given:
            return answer
        match answer:
            case Suspended(output=output):
                return replace(answer, output=self.hidden_in(output))
            case RichOutput(output, artifacts, content):
                hidden = self.hidden_in(output), self.hidden_in([*artifacts]), self.hidden_in(content)
                return RichOutput(*hidden, answer.cost_usd)
            case BytesArtifact(data=data):
                for text in self.given:
                    data = data.replace(text.encode(), "…".encode())
                return replace(answer, data=data)
            case str() | dict():
                return without(answer, self.given)
            case list() if any(isinstance(one, BytesArtifact) for one in answer):
                return [self.hidden_in(one) for one in answer]
            case list():
                return without(answer, self.given)
        return answer

    def hide_in_error(self, error: PlanqError) -> None:
        """Take what was given out of what an error says."""
        if self.given:
            error.message = without(error.message, self.given)
            error.details = without(error.details, self.given)
            if isinstance(error, ExecutionFailed):
                error.traceback = without(error.traceback, self.given)

    def hidden_in_question(self, question: Elicitation) -> Elicitation:
        """Return a question without what was given."""
        if not self.given:
            return question
        shown = {name: without(getattr(question, name), self.given) for name in ("message", "schema", "default")}
        return replace(question, **shown)
