"""Agents and skills as documents, and the executions of agents."""
