"""`make chaos`: planq under load while its processes and servers are killed, and the proof that nothing was lost.

Pure: `schedule` (which fault when), `recipes` (jobs and their right answers), `ledger`, `verdict`, `recovery`,
`memory`. With effects: `tools` (what the workers run), `servers`, `processes`, `faults`, `client`, `observer`, `run`.
"""
