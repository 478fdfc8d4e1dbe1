"""Routes of agents, skills and executions."""
