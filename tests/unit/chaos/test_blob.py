from __future__ import annotations

from tests.chaos.blob import blob, shrunk


def test_a_blob_has_its_size_and_follows_from_its_seed() -> None:
    assert len(blob(1, 1_000)) == 1_000
    assert blob(1, 1_000) == blob(1, 1_000) != blob(2, 1_000)


def test_a_short_output_stays_and_of_a_long_one_its_hash() -> None:
    assert shrunk({"value": 1}) == {"value": 1}
    long = shrunk({"text": blob(1, 20_000)})
    assert long == shrunk({"text": blob(1, 20_000)}) != shrunk({"text": blob(2, 20_000)})
    assert long["bytes"] == 20_011
