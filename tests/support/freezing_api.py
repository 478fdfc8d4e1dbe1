"""`python -m tests.support.freezing_api`: the API with a route that holds the interpreter for ever: `GET /hold`."""

from __future__ import annotations

import os

from fastapi import FastAPI

import planq.api.app
from planq.api.__main__ import serve
from planq.api.app import create_api
from planq.shared.platform.beats import Beats
from planq.shared.settings.settings import Settings
from tests.support.beating import hold


def create_freezing_api(settings: Settings) -> FastAPI:
    """Return the API with two routes more."""
    app = create_api(settings)

    @app.get("/hold")
    async def _hold() -> None:
        hold()

    @app.get("/pid")
    async def _pid() -> int:
        return os.getpid()

    return app


if __name__ == "__main__":
    planq.api.app.create_api = create_freezing_api
    serve(Beats.inherited())
