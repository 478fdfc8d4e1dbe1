"""The caller and the services of the unit tests serve here too."""

from tests.unit.tools.conftest import context, knowledge, services

__all__ = ["context", "knowledge", "services"]
