"""A node as the full-screen view of `springtide top` shows it: its pods, and the terms of its
peaks. From Kafka, or from an extender, which does not read predictions."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from pipeline.cli.explain import read_records
from pipeline.cli.extender_client import ExtenderClient
from pipeline.cli.pod_names import read_pod_names
from pipeline.cli.safe_output import printable
from pipeline.clock import SystemClock
from pipeline.processors.explain.derivation import RESOURCES, PodValues, pod_values
from pipeline.processors.explain.named_pods import with_pod_names
from pipeline.processors.explain.offer_text import explain_offers
from pipeline.processors.explain.prediction_text import explain
from pipeline.processors.explain.prod_text import margin_of
from pipeline.processors.explain.quantity_text import UNKNOWN, format_age, format_bytes, format_cpu
from pipeline.settings import KafkaSettings
from pipeline.table.node_documents import NodeItem
from pipeline.topics.node_views import ViewPod
from pipeline.topics.predictions import PredictionRecord

POD_HEADERS: Final = ("POD", "CLASS", "REQ CPU", "PEAK CPU", "REQ MEM", "PEAK MEM", "AGE", "STATE")
LEFT_ALIGNED: Final = ("POD", "CLASS", "STATE")


class NodeDetails(NamedTuple):
    """The cells of each pod, in the order of `POD_HEADERS`, and lines that derive the peaks."""

    pods: Sequence[Sequence[str]]
    terms: Sequence[str]


async def details_from_kafka(kafka: KafkaSettings, node: str) -> NodeDetails:
    """Read the newest prediction of a node. Raises `NotReadyError` if there is none, and the
    `KafkaError` that prevents reading."""
    record, state, offers = await read_records(kafka, node)
    named = with_pod_names(record, await read_pod_names(kafka, node))
    now = SystemClock().now()
    terms = explain(named, state, now=now, predictors=(named.predictor,))
    if offers is not None:
        terms += ["", *explain_offers(offers, now=now, resources=tuple(RESOURCES))]
    return NodeDetails(_pods(named), [*map(printable, terms)])


def _pods(record: PredictionRecord) -> list[list[str]]:
    """The pods of the last window, the highest peak of CPU first, unknown last."""
    margin = margin_of(record)
    cpu, memory = (
        pod_values(record.pods, resource, record.predictor) for resource in RESOURCES.values()
    )

    def order(pair: tuple[PodValues, PodValues]) -> tuple[float, str]:
        raw = pair[0].raw
        return (math.inf if raw is None else -raw), pair[0].uid

    return [
        [
            printable(of_cpu.uid),
            printable(of_cpu.pod_class),
            _amount("cpu", of_cpu.request, 1 / 1000),
            _amount("cpu", of_cpu.raw, margin),
            _amount("memory", of_memory.request, 1.0),
            _amount("memory", of_memory.raw, margin),
            format_age(of_cpu.age_seconds),
            _state(of_cpu),
        ]
        for of_cpu, of_memory in sorted(zip(cpu, memory, strict=True), key=order)
    ]


def _amount(resource: str, value: float | None, scale: float) -> str:
    if value is None:
        return UNKNOWN
    return format_cpu(value * scale) if resource == "cpu" else format_bytes(value * scale)


def _state(pod: PodValues) -> str:
    """Why a pod does not count its peak, in a word."""
    if pod.ended:
        return "ended"
    words = ["cold: counts its request"] if pod.cold and pod.active else []
    return ", ".join(words if pod.active else ["being deleted"])


class _View(msgspec.Struct):
    """The part of the extender's answer to GET /v1/nodes/{node}/view that is shown."""

    pods: tuple[ViewPod, ...] = ()


async def details_from_extender(extender: ExtenderClient, node: str) -> NodeDetails:
    """Ask an extender. Raises `SpringtideError`."""
    path = f"/v1/nodes/{quote(node, safe='')}"
    async with extender.session() as session:
        item = await extender.request(session, path, NodeItem)
        view = await extender.request(session, f"{path}/view", _View)
    pods = [
        [
            printable(f"{pod.namespace}/{pod.name}"),
            printable(pod.pod_class),
            _amount("cpu", pod.requests.cpu_millicores, 1 / 1000),
            UNKNOWN,
            _amount("memory", pod.requests.memory_bytes, 1.0),
            UNKNOWN,
            UNKNOWN,
            "being deleted" if pod.deleting else printable(pod.phase),
        ]
        for pod in sorted(view.pods, key=lambda pod: (pod.namespace, pod.name))
    ]
    return NodeDetails(pods, [*map(printable, _peaks(item))])


def _peaks(item: NodeItem) -> list[str]:
    """The peaks of the node, and where their terms are."""
    lines = ["predicted peaks of the node, with the safety margin"]
    for predictor, peak in item.peaks.items():
        decides = " (decides)" if predictor == item.predictor else ""
        amounts = f"cpu {format_cpu(peak.cpu_cores)}, memory {format_bytes(peak.memory_bytes)}"
        lines.append(f"  {predictor}{decides}: {amounts}")
    return [*lines, "", "An extender has no terms, and no peaks of pods: leave out --extender."]
