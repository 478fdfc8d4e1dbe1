"""The shop window's chat: a web application that hands messages on to planq, and gives its replies back."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from planq import AsyncClient, PlanqError

ENDED: list[str] = []


class VisitorMessage(BaseModel):
    who: str
    text: str


def create_app(planq_url: str | None = None) -> FastAPI:
    """Return the application; without a URL planq's is that of PLANQ_URL."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncClient(planq_url) as app.state.planq:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/chat/{thread}")
    async def chat(thread: str, said: VisitorMessage, request: Request) -> dict[str, str]:
        """Answer a visitor; where somebody has to be asked first, say what."""
        planq: AsyncClient = request.app.state.planq
        reply = await planq.send_message(said.text, channel="web", thread=thread, sender=said.who, timeout=60)
        if reply["status"] == "input_required":
            return {"asks": reply["message"]}
        return {"text": reply["message"]["content"]["text"]}

    @app.post("/hooks/planq", status_code=204)
    async def hook(request: Request) -> None:
        """Note what has ended; planq calls this, and nobody else can."""
        try:
            told = AsyncClient.webhook(await request.body(), request.headers, os.environ["PLANQ_HOOK_SECRET"])
        except PlanqError as refused:
            raise HTTPException(401, refused.message) from refused
        ENDED.append(told["data"]["id"])

    return app
