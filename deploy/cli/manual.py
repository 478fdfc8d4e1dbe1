"""`planq docs`: a search over the manual, which every installation brings; nothing has to run for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from planq.api.cli.connection import AsJson
from planq.api.cli.console import as_line, err, out, print_json
from planq.api.cli.outcome import NOT_OK, end


def search_manual(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="What to look for, in plain words.")],
    limit: Annotated[int, typer.Option(min=1, max=50, help="Maximum number of places.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Search the manual: README and docs of this release.

    Prints place, title and an excerpt of each section that fits, the best one first. Exit code 1 when none does.
    """
    from planq.shared.platform.manual import manual_pages, search_pages

    asked = " ".join(words)
    found = search_pages(manual_pages(), asked, limit=limit)
    if as_json:
        print_json({"items": [asdict(one) for one in found]})
    for one in found if not as_json else ():
        out.print(one.place, style="bold", markup=False, highlight=False, soft_wrap=True)
        out.print(f"  {one.title}", markup=False, highlight=False)
        out.print(f"  {one.excerpt}\n", style="dim", markup=False, highlight=False)
    if not found:
        err.print(f"nothing was found for: {as_line(asked)}")
        end(NOT_OK)
