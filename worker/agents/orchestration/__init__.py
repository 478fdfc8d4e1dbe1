"""Orchestration of agents: plans that agents write for other agents, and what becomes of them.

Pure: a plan is validated (`plan`), compiled into an ordinary plan of planq (`compiling`), bounded (`limits`), its
progress read as a state machine (`machine`), its parts merged (`merging`) and its outcome rendered (`rendering`).
docs/decisions.md, D2, D11 to D16.
"""
