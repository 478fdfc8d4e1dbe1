"""A made-up next release of planq: a copy of the product in a folder, with what releases change.

A new column (migration 0101), a changed SQL function (ends tell their release), a new field in messages, a removed
setting. `with_contract` adds migration 0102, which drops what only the releases before 0101 use.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.stack import ROOT

HEAD = "0101"

CONTRACT_HEAD = "0102"

REMOVED_SETTING = "PLANQ_SLOTS_OF_BEFORE"

_PACKAGE = ROOT / "deploy" / "package" / "planq"

_MIGRATION = '''"""{doc}"""

from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None
works_from = "{works_from}"


def upgrade() -> None:
    """Apply."""
    op.execute("{statement}")
'''


def make(folder: Path, *, with_contract: bool = False) -> Path:
    """Write the release's package into a folder; return the folder, which leads PYTHONPATH."""
    for part in ("api", "deploy", "shared", "worker"):
        shutil.copytree(ROOT / part, folder / "planq" / part, ignore=shutil.ignore_patterns("__pycache__", "package"))
    for part in ("__init__.py", "testing"):
        copy = shutil.copytree if (_PACKAGE / part).is_dir() else shutil.copy
        copy(_PACKAGE / part, folder / "planq" / part)
    head = CONTRACT_HEAD if with_contract else HEAD
    _change(folder, "shared/kernel/schema_version.py", 'HEAD = "0100"', f'HEAD = "{head}"')
    _change(folder, "shared/platform/version.py", 'VERSION = "', 'VERSION = "9.')
    _change(
        folder,
        "shared/kernel/sql/functions/events.sql",
        """format('{"outcome":"%s"',""",
        """format('{"release":"next","outcome":"%s"',""",
    )
    _change(
        folder,
        "shared/broker/messages.py",
        """        "pool": str(wake.pool),
""",
        """        "pool": str(wake.pool),
        "release": "next",
""",
    )
    _change(
        folder,
        "shared/settings/environment.py",
        "REMOVED: Mapping[str, str] = {",
        f'REMOVED: Mapping[str, str] = {{\n    "{REMOVED_SETTING}": "unset it",',
    )
    versions = folder / "planq" / "shared" / "schema" / "migrations" / "versions"
    expand = _MIGRATION.format(
        doc="A column that releases from 0101 on write.",
        revision=HEAD,
        before="0100",
        works_from="0100",
        statement="ALTER TABLE jobs ADD COLUMN of_next text",
    )
    (versions / f"{HEAD}_expand.py").write_text(expand, "utf-8")
    if with_contract:
        contract = _MIGRATION.format(
            doc="The column of before is gone.",
            revision=CONTRACT_HEAD,
            before=HEAD,
            works_from=HEAD,
            statement="ALTER TABLE jobs DROP COLUMN of_next",
        )
        (versions / f"{CONTRACT_HEAD}_contract.py").write_text(contract, "utf-8")
    return folder


def _change(folder: Path, path: str, before: str, after: str) -> None:
    file = folder / "planq" / path
    text = file.read_text("utf-8")
    if text.count(before) != 1:
        raise AssertionError(f"{path}: expected {before!r} once, found it {text.count(before)} times")
    file.write_text(text.replace(before, after), "utf-8")
