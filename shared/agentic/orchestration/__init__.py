"""Plans of agents for other agents, compiled into an ordinary plan (docs/decisions.md, D2, D11 to D14)."""
