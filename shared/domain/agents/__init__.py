"""Agents as documents, their input, their answers and their chained tools: pure, as the rest of the core."""
