"""The caller and the services of the unit tests serve here too; the MCP servers are fixtures of their own."""

from tests.integration.tools.mcp_probe import http_probe, probed, run, shared_probe
from tests.unit.tools.conftest import context, knowledge, services

__all__ = ["context", "http_probe", "knowledge", "probed", "run", "services", "shared_probe"]
