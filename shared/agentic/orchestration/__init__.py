"""Plans that agents write for other agents: read, checked, and compiled into an ordinary plan.

docs/decisions.md, D2, D11 to D14.
"""
