"""Images, files and audio that a client sends beside a text: paths of files, URLs, and parts as the API has them."""

from __future__ import annotations

import base64
import mimetypes
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from planq.shared.client.wire import Json
from planq.shared.platform.errors import InvalidRequest, Misconfigured, TooLarge, capped
from planq.shared.platform.values.parts import found_media_type, part_type

Attachment: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""The path of a file, an http or https URL, or a part such as `{"type": "image", "artifact_id": "charts/1"}`."""

MAX_ATTACHED_BYTES = 64 * 1024 * 1024
"""Maximum size of a file that a client reads; what the API takes is less, unless its settings say otherwise."""


def with_attachments(text: str | None, attachments: Iterable[Attachment] | None) -> str | list[Json] | None:
    """Return the input of a job, or the content of a message: the text, or with attachments a list of parts.

    Raises `Misconfigured` for a file that cannot be read, `TooLarge`, and `InvalidRequest` for a URL that does not
    show what is there.
    """
    parts = [_part(one) for one in attachments or ()]
    if not parts:
        return text
    return [*([] if text is None else [{"type": "text", "text": text}]), *parts]


def _part(given: Attachment) -> Json:
    if isinstance(given, Mapping):
        return dict(given)
    name = os.fspath(given)
    if name.startswith(("http://", "https://")):
        return _at_url(name)
    try:
        size = os.stat(name).st_size
        if size > MAX_ATTACHED_BYTES:
            message = f"expected a file of at most {MAX_ATTACHED_BYTES} bytes, found {size} in {capped(name, 200)!r}"
            raise TooLarge(message, limit=MAX_ATTACHED_BYTES, actual=size)
        data = Path(name).read_bytes()
    except OSError as error:
        raise Misconfigured(f"the attachment {capped(name, 200)!r} cannot be read ({error.strerror})") from error
    media_type = found_media_type(data) or mimetypes.guess_type(name)[0]
    part = {"type": part_type(media_type or ""), "data": base64.b64encode(data).decode(), "filename": Path(name).name}
    return part if media_type is None else {**part, "media_type": media_type}


def _at_url(url: str) -> Json:
    media_type = mimetypes.guess_type(urlsplit(url).path)[0]
    if media_type is None:
        raise InvalidRequest(
            f"the end of the URL {capped(url, 200)} does not show what is there; expected a suffix such as .png, "
            'or in Python a part: {"type": "image", "url": …}'
        )
    return {"type": part_type(media_type), "url": url, "media_type": media_type}
