"""`planq knowledge load` and `planq knowledge search`: the documents that the tool `knowledge_search` looks into.

They speak to the database itself: documents are the operator's business, and no endpoint takes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from planq.api.cli.connection import AsJson
from planq.api.cli.console import as_line, counted, err, out, print_json
from planq.api.cli.outcome import NOT_OK, end, reported
from planq.deploy.cli.database import with_database
from planq.shared.kernel.ids import TENANT

if TYPE_CHECKING:
    from planq.api.cli.reading import FoundFile
    from planq.shared.agentic.tools.contract import Passage
    from planq.shared.subjects.moments.store import PostgresKnowledge

T = TypeVar("T")

ALL = ""
"""The owner of documents for all tenants."""


@dataclass(slots=True)
class LoadReport:
    """The result for the files of one call; `passages` counts those of newly loaded documents."""

    loaded: list[dict[str, Any]] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    passages: int = 0

    @property
    def found_something(self) -> bool:
        return bool(self.loaded or self.unchanged)


def load_documents(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", exists=True, help="Files and folders.")],
    prefix: Annotated[str, typer.Option(help="Prefix of each source, for folders with files of the same name.")] = "",
    tenant: Annotated[str | None, typer.Option(help="The tenant that finds them; default: all tenants.")] = None,
    as_json: AsJson = False,
) -> None:
    """Load documents: Markdown, HTML and any text.

    Each is identified by its path below PATH. An unchanged document is skipped, a changed one
    replaced. Binary files and files over 5 MiB are skipped and said so; hidden files are left out.
    """
    with reported(as_json=as_json):
        result = _with_knowledge(lambda knowledge: _load(knowledge, paths, prefix, tenant or ALL), tenant)
    if as_json:
        print_json(asdict(result))
    else:
        for one in result.skipped:
            err.print(f"skipped {as_line(one['source'], 200)}: {one['reason']}", style="yellow")
        out.print(
            f"{counted(len(result.loaded), 'document')} loaded ({counted(result.passages, 'passage')}), "
            f"{len(result.unchanged)} unchanged, {len(result.skipped)} skipped"
        )
    if not result.found_something:
        end(NOT_OK)


def search_documents(
    query: Annotated[str, typer.Argument(help="What to look for, in plain words.")],
    limit: Annotated[int, typer.Option(min=1, max=50, help="Maximum number of passages.")] = 5,
    tenant: Annotated[str, typer.Option(help="Who searches.")] = TENANT,
    as_json: AsJson = False,
) -> None:
    """Search the documents as the tool does.

    Exit code 1 when nothing is found.
    """
    with reported(as_json=as_json):
        found = _with_knowledge(lambda knowledge: knowledge.search(tenant, query, limit), tenant)
    if as_json:
        print_json({"items": [asdict(passage) for passage in found]})
    else:
        for passage in found:
            _show(passage)
    if not found:
        err.print(f"nothing was found for: {as_line(query)}")
        end(NOT_OK)


def _with_knowledge(use: Callable[[PostgresKnowledge], Awaitable[T]], tenant: str | None) -> T:
    from planq.shared.platform.database import Database
    from planq.shared.subjects.moments.store import PostgresKnowledge
    from planq.shared.subjects.tenants.directory import TenantStore

    async def run(database: Database) -> T:
        if tenant is not None:
            await TenantStore(database).get(tenant)
        return await use(PostgresKnowledge(database))

    return with_database(run)


async def _load(knowledge: PostgresKnowledge, paths: list[Path], prefix: str, tenant_id: str) -> LoadReport:
    from planq.api.cli.reading import UnreadableFile, find_files

    result = LoadReport()
    for found in find_files(paths, prefix):
        try:
            await _load_file(knowledge, tenant_id, found, result)
        except UnreadableFile as reason:
            result.skipped.append({"source": found.source, "reason": str(reason)})
    return result


async def _load_file(knowledge: PostgresKnowledge, tenant_id: str, found: FoundFile, result: LoadReport) -> None:
    from planq.api.cli.reading import UnreadableFile, read_file
    from planq.deploy.cli import passages

    if found.reason is not None:
        raise UnreadableFile(found.reason)
    text, form, raw = read_file(found.path)
    named, pieces = passages.split_document(text, form)
    if not pieces:
        raise UnreadableFile("holds no text")
    title = named or found.path.name
    digest = sha256(f"{passages.SPLIT_VERSION}\0{form}\0{title}\0".encode() + raw).hexdigest()
    if await knowledge.load(tenant_id, source=found.source, title=title, digest=digest, pieces=pieces):
        result.loaded.append({"source": found.source, "title": title, "passages": len(pieces)})
        result.passages += len(pieces)
    else:
        result.unchanged.append(found.source)


def _show(passage: Passage) -> None:
    out.print(passage.title, style="bold")
    out.print(f"{passage.source}  ({passage.score:.2f})", style="dim")
    out.print(passage.text)
    out.print("")
