"""The interactive description at `/docs`, with its scripts served from here: it works without the internet.

The assets come from the package `fastapi-offline`; only its files are used, none of its code.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

ASSETS = "/docs/assets"

docs = APIRouter(include_in_schema=False)


def assets() -> StaticFiles:
    """Return the application that serves the page's script and style sheet."""
    package = importlib.util.find_spec("fastapi_offline")
    if package is None or package.origin is None:
        raise RuntimeError("the package fastapi-offline is not installed; `make` installs it with the others")
    return StaticFiles(directory=Path(package.origin).parent / "static")


@docs.get("/docs")
async def page(request: Request) -> HTMLResponse:
    """Return the page."""
    return get_swagger_ui_html(
        openapi_url=str(request.app.openapi_url),
        title="planq",
        swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f"{ASSETS}/swagger-ui.css",
        swagger_favicon_url=f"{ASSETS}/favicon.png",
    )
