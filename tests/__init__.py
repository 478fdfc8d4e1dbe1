"""planq's tests: unit (no services), integration (real servers), conformance, contract, faults, e2e, bench."""
