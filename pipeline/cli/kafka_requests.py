"""Run the requests of a command to Kafka, and tell the user if they take long."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, TypeVar

import click

from pipeline.settings import KafkaSettings

NOTICE_SECONDS: Final = 2.0

T = TypeVar("T")


def run_requests(kafka: KafkaSettings, requests: Coroutine[Any, Any, T]) -> T:
    """Return the result of `requests`, in an event loop of its own. After two seconds a line on
    standard error says that the command waits for Kafka."""
    return asyncio.run(_with_notice(kafka, requests))


async def _with_notice(kafka: KafkaSettings, requests: Coroutine[Any, Any, T]) -> T:
    text = f"waiting for Kafka at {kafka.bootstrap_servers} ..."
    notice = asyncio.get_running_loop().call_later(
        NOTICE_SECONDS, partial(click.echo, text, err=True)
    )
    try:
        return await requests
    finally:
        notice.cancel()
