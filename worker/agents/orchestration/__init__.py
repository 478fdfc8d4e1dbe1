"""Orchestrations as they are carried out: their agents, transitions and output, all derived from the steps.

Pure. Plans of agents are read and compiled in `shared/agentic/orchestration`. docs/decisions.md, D15 and D16.
"""
