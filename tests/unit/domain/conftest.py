"""Settings of the property tests."""

from __future__ import annotations

from hypothesis import settings

from tests.support.tiers import examples

# Without a deadline per example: the machine is shared, and a pause of another process is no fault of the code.
settings.register_profile("planq", deadline=None, max_examples=examples(100))
settings.load_profile("planq")
