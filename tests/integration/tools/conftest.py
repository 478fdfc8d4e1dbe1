"""The caller and the services of the unit tests serve here too; the MCP servers are fixtures of their own."""

from tests.integration.tools.mcp_probe import http_probe, run
from tests.unit.tools.conftest import context, knowledge, services

__all__ = ["context", "http_probe", "knowledge", "run", "services"]
