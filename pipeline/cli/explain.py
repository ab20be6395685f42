"""`springtide explain`: how the peaks of a node, its Mid and its Batch came about, from its newest
published records."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import click
import msgspec

from pipeline.cli.options import KAFKA_CLIENT, quiet_client, settings_options
from pipeline.cli.safe_output import printable, say
from pipeline.clock import SystemClock
from pipeline.errors import BrokerUnavailableError, NotReadyError, UsageError
from pipeline.kafka.newest import names_near, newest
from pipeline.kafka.topic_admin import require_topics
from pipeline.processors.explain.derivation import RESOURCES
from pipeline.processors.explain.offer_text import TIERS, explain_offers
from pipeline.processors.explain.prediction_text import explain, predictors_of
from pipeline.processors.explain.record_selection import part_of
from pipeline.processors.model.model_config import ENTITIES
from pipeline.settings import KafkaSettings, Settings
from pipeline.topics.codec import decode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.registry import NODE_STATE, PREDICTIONS
from pipeline.topics.registry import RESOURCES as OFFERS


@click.command(
    epilog="Exit codes: 0 shown, 1 failure, 2 usage, 3 topics are missing, 4 no prediction of this "
    "node. Every line is an input, a step with its result, or the sum of the lines above it; all "
    "digits are shown, so that each result can be computed again."
)
@click.argument("node")
@click.option("--resource", type=click.Choice(list(RESOURCES)), help="Only this resource.")
@click.option(
    "--class",
    "entity",
    type=click.Choice(ENTITIES),
    help="Only the node, the system or this class; prod shows what it leaves unused.",
)
@click.option("--predictor", metavar="NAME", help="Only this predictor.")
@click.option(
    "--tier",
    type=click.Choice(TIERS),
    help="Only what the node has for this tier, and what it was worked out from.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the record as JSON, or that part of the peaks."
)
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def command(
    settings: Settings,
    node: str,
    resource: str | None,
    entity: str | None,
    predictor: str | None,
    tier: str | None,
    as_json: bool,
) -> None:
    """Show how the peaks of NODE, its Mid and its Batch came about, with every number filled in.

    For each predictor: the terms, the peak before and with the safety margin, and for prod how
    peak and reclaimable amount follow from both views, pod by pod. From the records that workers
    have published; nothing is computed anew but what they do not carry.

    \b
    Examples:
      springtide explain node-1 --class prod --resource cpu
      springtide explain node-1 --predictor nsigma-v1 --class node
      springtide explain node-1 --tier mid --resource cpu
      springtide explain node-1 --json | jq .reclaimable
      springtide explain node-1 --json --class prod --resource memory
    """
    quiet_client(settings)
    resources = tuple(RESOURCES) if resource is None else (resource,)
    if tier is not None:
        if entity is not None or predictor is not None:
            raise UsageError("--tier goes with neither --class nor --predictor")
        _show_offers(settings.kafka, node, tier, resources, as_json=as_json)
        return
    record, state, offers = asyncio.run(_read(settings.kafka, node))
    if predictor is not None and predictor not in predictors_of(record):
        raise UsageError(
            f"no predictor {predictor!r:.100} runs for node {node}",
            hint=f"choose one of {', '.join(predictors_of(record))}",
        )
    entities, predictors = (() if name is None else (name,) for name in (entity, predictor))
    if as_json:
        part = part_of(record, resources=resources, entities=entities, predictors=predictors)
        click.echo(msgspec.json.encode(part))
        return
    now = SystemClock().now()
    lines = explain(
        record, state, now=now, resources=resources, entities=entities, predictors=predictors
    )
    if offers is not None and entity is None and predictor is None:
        lines += ["", *explain_offers(offers, now=now, resources=resources)]
    say(lines)


def _show_offers(
    kafka: KafkaSettings, node: str, tier: str, resources: Sequence[str], *, as_json: bool
) -> None:
    found = asyncio.run(_read_offers(kafka, node))
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        now = SystemClock().now()
        say(explain_offers(found, now=now, resources=resources, tiers=(tier,)))


class _Known(NamedTuple):
    """What was published of a node."""

    prediction: PredictionRecord
    state: NodeStateRecord | None
    offers: NodeResourcesRecord | None


async def _require(kafka: KafkaSettings) -> None:
    try:
        await require_topics(kafka, (PREDICTIONS, NODE_STATE, OFFERS))
    except BrokerUnavailableError as error:
        raise BrokerUnavailableError(
            f"no Kafka broker answers at {kafka.bootstrap_servers}, and predictions are read there",
            hint="give its address by --bootstrap-servers or kafka.bootstrap_servers; "
            "`springtide doctor` looks for what is wrong, `springtide kafka start` starts one here",
        ) from error


async def _read(kafka: KafkaSettings, node: str) -> _Known:
    await _require(kafka)
    found, state, offers = await asyncio.gather(
        *(newest(kafka, topic, node) for topic in (PREDICTIONS, NODE_STATE, OFFERS))
    )
    if found is None:
        raise await no_node(kafka, node, "prediction")
    return _Known(
        decode_json(PredictionRecord, found.value),
        None if state is None else decode_json(NodeStateRecord, state.value),
        None if offers is None else decode_json(NodeResourcesRecord, offers.value),
    )


async def _read_offers(kafka: KafkaSettings, node: str) -> NodeResourcesRecord:
    await _require(kafka)
    found = await newest(kafka, OFFERS, node)
    if found is None:
        raise await no_node(
            kafka, node, "offer", "the policy does not make it take part: `enable` is false"
        )
    return decode_json(NodeResourcesRecord, found.value)


async def no_node(
    kafka: KafkaSettings,
    node: str,
    what: str,
    why: str = "one may follow with its next window",
) -> NotReadyError:
    """The error that there is no `what` of `node`, with names that may have been meant, or `why`
    where it reports."""
    near = await names_near(kafka, node)
    if node in near:
        hint = f"the node has reported lately: {why}"
    elif near:
        hint = f"did you mean {printable(', '.join(near))}?"
    else:
        hint = "`springtide top` shows the nodes that report"
    return NotReadyError(f"there is no {what} of node {node!r:.100}", hint=hint)
