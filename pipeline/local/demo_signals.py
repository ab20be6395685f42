"""Signals of the demo: it ends by Ctrl-C, SIGTERM and SIGHUP, and removes what it started."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C."""
    previous = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Let nothing interrupt the clean-up, which takes seconds: neither a second Ctrl-C."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def stop_event() -> asyncio.Event:
    """An event that a signal sets, for the running event loop."""
    stop = asyncio.Event()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
