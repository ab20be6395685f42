"""One broker for these tests alone: they stop and start it, and fill it."""

from tests.integration.conftest import broker

__all__ = ["broker"]
