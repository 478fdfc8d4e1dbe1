"""`planq secrets`: what a tenant keeps secret, for providers of models and for tools; it speaks to the database."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from planq.api.cli.connection import AsJson, located_settings
from planq.api.cli.console import err, out, print_json, print_result, print_rows
from planq.api.cli.outcome import NOT_OK, end, reported
from planq.deploy.cli.database import with_database
from planq.deploy.cli.tenants import TenantId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planq.shared.subjects.tenants.secrets import SecretStore, StoredSecret

T = TypeVar("T")

_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A provider's, such as openai_api_key, or what tools ask for.")
]


def set_secret(tenant_id: TenantId, name: _Name, as_json: AsJson = False) -> None:
    """Store a secret of a tenant, read from standard input, because command lines are public on a machine.

    It is sealed under the first of PLANQ_SECRET_KEYS. Workers that know these use it within a second: one of a
    provider in the place of the server's own, any other where a tool asks for it.
    """
    text = typer.prompt(name, hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read()
    with reported(as_json=as_json):
        _with_secrets(lambda secrets: secrets.put(tenant_id, name, text))
    said = f"secret {name} of the tenant {tenant_id} is stored"
    print_result({"tenant_id": tenant_id, "name": name}, said, as_json=as_json)


def list_secrets(tenant_id: TenantId, as_json: AsJson = False) -> None:
    """List a tenant's secrets: names, and the ids of the keys that seal them."""

    async def found(secrets: SecretStore) -> Sequence[StoredSecret]:
        return await secrets.list(tenant_id)

    with reported(as_json=as_json):
        stored = _with_secrets(found)
    rows = [[one.name, f"key {one.key_id}", f"set {one.updated_at:%Y-%m-%d %H:%M}"] for one in stored]
    print_rows({"items": [one.to_json() for one in stored]}, rows, as_json=as_json)


def remove_secret(tenant_id: TenantId, name: _Name, as_json: AsJson = False) -> None:
    """Remove a secret of a tenant: the server's own is used again."""
    with reported(as_json=as_json):
        _with_secrets(lambda secrets: secrets.remove(tenant_id, name))
    said = f"secret {name} of the tenant {tenant_id} is removed"
    print_result({"tenant_id": tenant_id, "name": name}, said, as_json=as_json)


def rotate_secrets(as_json: AsJson = False) -> None:
    """Seal every secret under the first of PLANQ_SECRET_KEYS; afterwards the other keys can be taken out.

    Exit code 1 where a secret cannot be opened: it was sealed under a key that is missing.
    """
    with reported(as_json=as_json):
        rotated = _with_secrets(lambda secrets: secrets.rotate())
    if as_json:
        print_json({"resealed": rotated.resealed, "unopened": list(rotated.unopened)})
    else:
        out.print(f"{rotated.resealed} sealed again")
        for one in rotated.unopened:
            err.print(f"cannot be opened: {one}", style="red")
    if rotated.unopened:
        end(NOT_OK)


def _with_secrets(use: Callable[[SecretStore], Awaitable[T]]) -> T:
    from planq.shared.subjects.tenants.secrets import SecretStore

    masters = located_settings().master_keys
    return with_database(lambda database: use(SecretStore(database, masters)))
