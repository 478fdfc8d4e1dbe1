"""What jobs are made of: agents and tools."""
