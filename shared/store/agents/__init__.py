"""Agents and skills: documents in versions."""
