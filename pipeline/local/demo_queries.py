"""Queries of the demo: the extender over HTTP, the exporter's local socket, and Kafka."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from pipeline.errors import DemoError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import open_follower, topic_partitions
from pipeline.kafka.newest import newest
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import decode_json
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.registry import DEAD_LETTERS, PREDICTIONS

# So small that only a node that takes no pod at all refuses it.
SMALL_POD: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "newcomer", "namespace": "demo", "uid": "newcomer"},
    "spec": {
        "containers": [
            {"name": "main", "resources": {"requests": {"cpu": "250m", "memory": "128Mi"}}}
        ]
    },
}

_TIMEOUT_SECONDS = 10
_TIMEOUT = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)


class Answer(NamedTuple):
    """Names of nodes that pass, reasons by refused node, and scores (0 to 10) of the extender."""

    passed: Sequence[str]
    refused: Mapping[str, str]
    scores: Mapping[str, int]


async def ask_extender(url: str, names: Sequence[str]) -> Answer:
    """Filter and score nodes for `SMALL_POD`, as a scheduler with a node cache does.

    Only nodes that pass the filter are scored.
    """
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        filtered = await _post(session, f"{url}/filter", names)
        passed = filtered["NodeNames"] or []
        scores = await _post(session, f"{url}/prioritize", passed)
    refused = (filtered.get(kind) or {} for kind in ("FailedNodes", "FailedAndUnresolvableNodes"))
    return Answer(
        passed,
        {name: reason for reasons in refused for name, reason in reasons.items()},
        {score["Host"]: score["Score"] for score in scores},
    )


async def is_ready(url: str) -> bool:
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.get(f"{url}/readyz") as response,
        ):
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _post(session: aiohttp.ClientSession, url: str, names: Sequence[str]) -> Any:
    try:
        async with session.post(url, json={"Pod": SMALL_POD, "NodeNames": names}) as response:
            text = await response.text()
            if response.status != 200:
                raise DemoError(f"{url} answered with status {response.status}: {text[:300]}")
            return await response.json()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise DemoError(f"the extender does not answer at {url}: {error!r}") from error


async def newest_prediction(kafka: KafkaSettings, node: str) -> PredictionRecord | None:
    """Read the newest prediction of `node`; None if there is none yet."""
    record = await newest(kafka, PREDICTIONS, node)
    return None if record is None else decode_json(PredictionRecord, record.value)


async def dead_letters(kafka: KafkaSettings) -> int:
    partitions = topic_partitions(kafka, DEAD_LETTERS)
    async with open_follower(client_options(kafka), partitions) as follower:
        first, end = await follower.beginnings(), await follower.ends()
        return sum(end.values()) - sum(first.values())


class PodUsage(NamedTuple):
    """Usage of a pod: mean of CPU, maximum of memory; None is unknown."""

    cpu_cores: float | None
    memory_bytes: float | None


async def pod_usage(socket: Path | None, seconds: float) -> dict[str, PodUsage]:
    """Read the usage of each pod in the last `seconds` from the exporter's local socket, by UID.

    Usage that an exporter has not sent when it ends, or in ten seconds, is unknown.
    """
    if socket is None:
        return {}
    cpu: dict[str, list[float]] = defaultdict(list)
    memory: dict[str, list[float]] = defaultdict(list)
    with suppress(OSError):  # includes time-outs
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            async for usage in _pod_usages(socket, seconds):
                for values, key in ((cpu, "cpu_cores"), (memory, "memory_bytes")):
                    if usage[key] is not None:
                        values[usage["id"]].append(usage[key])
    return {
        uid: PodUsage(
            sum(cpu[uid]) / len(cpu[uid]) if cpu[uid] else None, max(memory[uid], default=None)
        )
        for uid in {*cpu, *memory}
    }


async def _pod_usages(socket: Path, seconds: float) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the usage of each pod in each collection, until the exporter has sent all, or ends."""
    reader, writer = await asyncio.open_unix_connection(socket, limit=1 << 20)
    try:
        writer.write(json.dumps({"seconds": seconds}).encode() + b"\n")
        while (line := await reader.readline()).endswith(b"\n"):
            record = json.loads(line)
            if "usages" not in record:
                return
            for usage in record["usages"]:
                if usage["kind"] == "pod":
                    yield usage
    finally:
        writer.close()
