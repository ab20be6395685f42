"""A broker for these tests alone: they stop, start and fill it."""

from tests.broker import broker

__all__ = ["broker"]
