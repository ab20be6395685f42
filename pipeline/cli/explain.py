"""`springtide explain`: derive a node's peaks, Mid and Batch from its newest records."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import click
import msgspec

from pipeline.cli.help_sections import Command
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.node_errors import missing_record_error
from pipeline.cli.options import KAFKA_CLIENT, output_formats, settings_options, silence_logs
from pipeline.cli.past_records import records_since
from pipeline.cli.pod_names import read_pod_names, with_uids
from pipeline.cli.safe_output import print_lines
from pipeline.clock import SystemClock
from pipeline.errors import InvalidRecordError, RecordError, UsageError
from pipeline.kafka.newest import Found, newest
from pipeline.kafka.topic_admin import require_topics
from pipeline.processors.explain.derivation import RESOURCES
from pipeline.processors.explain.named_pods import with_pod_names
from pipeline.processors.explain.offer_text import TIERS, explain_offers
from pipeline.processors.explain.prediction_text import explain, predictors_of
from pipeline.processors.explain.qos_text import explain_qos, held_values
from pipeline.processors.explain.record_selection import part_of
from pipeline.processors.model.model_config import ENTITIES
from pipeline.settings import KafkaSettings, Settings
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import Record, decode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.registry import ACTIONS, NODE_STATE, PREDICTIONS, Topic
from pipeline.topics.registry import RESOURCES as OFFERS

_ACTIONS_SECONDS = 7 * 86_400.0

RecordT = TypeVar("RecordT", bound=Record)


@click.command(
    cls=Command,
    exit_codes={0: "shown", 3: "topics are missing", 4: "no prediction or offer of this node"},
)
@click.argument("node")
@click.option("--resource", type=click.Choice(list(RESOURCES)), help="Show only this resource.")
@click.option(
    "--class", "entity", type=click.Choice(ENTITIES),
    help="Show only the node, the system or this class; prod includes its reclaimable amount.",
)  # fmt: skip
@click.option("--predictor", metavar="NAME", help="Show only this predictor.")
@click.option(
    "--tier",
    type=click.Choice(TIERS),
    help="Show only the node's amount of this tier, and its derivation.",
)
@click.option(
    "--qos", is_flag=True, help="Show what the node actuator holds in cgroups instead, and why."
)
@output_formats()
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def command(
    settings: Settings,
    node: str,
    resource: str | None,
    entity: str | None,
    predictor: str | None,
    tier: str | None,
    qos: bool,
    output: str,
) -> None:
    """Derive the predicted peaks, Mid and Batch of NODE step by step, with all numbers.

    For each predictor the command prints its terms, the peak without and with the safety margin,
    and for prod how peak and reclaimable amount follow from both views, pod by pod. It reads the
    newest records that workers published. Pods have their names; -o wide adds their UIDs, and JSON
    has the UIDs of the records.

    \b
    Examples:
      springtide explain node-1 --class prod --resource cpu
      springtide explain node-1 --predictor nsigma-v1 --class node
      springtide explain node-1 --tier mid --resource cpu
      springtide explain node-1 --qos
      springtide explain node-1 -o json | jq .reclaimable
      springtide explain node-1 -o json --class prod --resource memory
    """
    silence_logs(settings, "aiokafka")
    as_json = output == "json"
    resources = tuple(RESOURCES) if resource is None else (resource,)
    if qos:
        if entity is not None or predictor is not None or tier is not None or resource is not None:
            raise UsageError("--qos excludes options that select peaks or offers")
        _show_qos(settings.kafka, node, as_json=as_json)
        return
    if tier is not None:
        if entity is not None or predictor is not None:
            raise UsageError(
                "--tier excludes --class and --predictor", hint="give only --resource with it"
            )
        _show_offers(settings.kafka, node, tier, resources, as_json=as_json)
        return
    (record, state, offers), names = run_requests(
        settings.kafka, _read_with_names(settings.kafka, node, with_names=not as_json)
    )
    if predictor is not None and predictor not in predictors_of(record):
        raise UsageError(
            f"predictor {predictor!r:.100} does not run for node {node}",
            hint=f"choose one of {', '.join(predictors_of(record))}",
        )
    entities, predictors = (() if name is None else (name,) for name in (entity, predictor))
    if as_json:
        part = part_of(record, resources=resources, entities=entities, predictors=predictors)
        click.echo(msgspec.json.encode(part))
        return
    now = SystemClock().now()
    names = with_uids(names) if output == "wide" else names
    lines = explain(
        with_pod_names(record, names),
        state,
        now=now,
        resources=resources,
        entities=entities,
        predictors=predictors,
    )
    if offers is not None and entity is None and predictor is None:
        lines += ["", *explain_offers(offers, now=now, resources=resources)]
    print_lines(lines)


def _show_offers(
    kafka: KafkaSettings, node: str, tier: str, resources: Sequence[str], *, as_json: bool
) -> None:
    record = run_requests(kafka, read_offers(kafka, node))
    if as_json:
        click.echo(msgspec.json.encode(record))
    else:
        now = SystemClock().now()
        print_lines(explain_offers(record, now=now, resources=resources, tiers=(tier,)))


def _show_qos(kafka: KafkaSettings, node: str, *, as_json: bool) -> None:
    actions = run_requests(kafka, _read_actions(kafka, node))
    if as_json:
        held = [value._asdict() for value in held_values(actions)]
        click.echo(msgspec.json.encode({"node": node, "items": held}))
    else:
        print_lines(explain_qos(node, actions))


async def _read_actions(kafka: KafkaSettings, node: str) -> list[ActionRecord]:
    """The actions about a node that are kept, at most those of the last week."""
    since = SystemClock().now() - _ACTIONS_SECONDS
    async with records_since(kafka, ACTIONS, ActionRecord, since) as records:
        return [action for action in await records.to_end() if action.node == node]


class _NodeRecords(NamedTuple):
    prediction: PredictionRecord
    state: NodeStateRecord | None
    offers: NodeResourcesRecord | None


async def _read_with_names(
    kafka: KafkaSettings, node: str, *, with_names: bool
) -> tuple[_NodeRecords, dict[str, str]]:
    records = await read_records(kafka, node)
    return records, await read_pod_names(kafka, node) if with_names else {}


async def read_records(kafka: KafkaSettings, node: str) -> _NodeRecords:
    await require_topics(kafka, (PREDICTIONS, NODE_STATE, OFFERS))
    prediction, state, offers = await asyncio.gather(
        *(newest(kafka, topic, node) for topic in (PREDICTIONS, NODE_STATE, OFFERS))
    )
    if prediction is None:
        raise await missing_record_error(kafka, node, "prediction")
    return _NodeRecords(
        _decoded(PredictionRecord, PREDICTIONS, prediction),
        None if state is None else _decoded(NodeStateRecord, NODE_STATE, state),
        None if offers is None else _decoded(NodeResourcesRecord, OFFERS, offers),
    )


async def read_offers(kafka: KafkaSettings, node: str) -> NodeResourcesRecord:
    await require_topics(kafka, (OFFERS,))
    record = await newest(kafka, OFFERS, node)
    if record is None:
        raise await missing_record_error(
            kafka, node, "offer",
            "the policy excludes it. Set `enable` in `colocation-config` of the ConfigMap "
            "slo-controller-config (docs/reference/policy.md)",
        )  # fmt: skip
    return _decoded(NodeResourcesRecord, OFFERS, record)


def _decoded(kind: type[RecordT], topic: Topic, record: Found) -> RecordT:
    """Decode the newest record of a node. Raises `InvalidRecordError` with its place."""
    try:
        return decode_json(kind, record.value)
    except RecordError as error:
        raise InvalidRecordError(
            f"the node's newest record of {topic.name} (offset {record.offset}) is invalid: "
            f"{error.message}",
            hint="the worker's next one replaces it; runbook SpringtideDeadLetters: who wrote it",
        ) from error
