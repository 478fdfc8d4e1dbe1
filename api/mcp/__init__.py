"""`POST /mcp`: the tools of a tenant for clients that speak MCP. Each call is a job of one step (docs/tools.md)."""
