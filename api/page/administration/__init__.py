"""For who answers for the installation: what it has cost, and tenants with their keys and limits."""
