"""`springtide explain`: how the peaks of a node came about, from its newest published record."""

import asyncio

import click
import msgspec

from pipeline.cli.options import KAFKA_CLIENT, quiet_client, settings_options
from pipeline.cli.printing import printable, say
from pipeline.clock import SystemClock
from pipeline.errors import BrokerUnavailableError, NotReadyError, UsageError
from pipeline.processors.derivation import RESOURCES
from pipeline.processors.explain import explain, predictors_of
from pipeline.processors.explain_part import part_of
from pipeline.processors.window import ENTITIES
from pipeline.settings import KafkaSettings, Settings
from pipeline.topics.admin import require_topics
from pipeline.topics.codec import decode_json
from pipeline.topics.newest import names_near, newest
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.registry import NODE_STATE, PREDICTIONS


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
@click.option("--json", "as_json", is_flag=True, help="Print the record, or that part, as JSON.")
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def command(
    settings: Settings,
    node: str,
    resource: str | None,
    entity: str | None,
    predictor: str | None,
    as_json: bool,
) -> None:
    """Show how the peaks of NODE came about, with every number filled in.

    For each predictor: the terms, the peak before and with the safety margin, and for prod how
    peak and reclaimable amount follow from both views, pod by pod. From the records that workers
    have published; nothing is computed anew but what they do not carry.

    \b
    Examples:
      springtide explain node-1 --class prod --resource cpu
      springtide explain node-1 --predictor nsigma-v1 --class node
      springtide explain node-1 --json | jq .reclaimable
      springtide explain node-1 --json --class prod --resource memory
    """
    quiet_client(settings)
    record, state = asyncio.run(_read(settings.kafka, node))
    if predictor is not None and predictor not in predictors_of(record):
        raise UsageError(
            f"no predictor {predictor!r:.100} runs for node {node}",
            hint=f"choose one of {', '.join(predictors_of(record))}",
        )
    resources = tuple(RESOURCES) if resource is None else (resource,)
    entities, predictors = (() if name is None else (name,) for name in (entity, predictor))
    if as_json:
        part = part_of(record, resources=resources, entities=entities, predictors=predictors)
        click.echo(msgspec.json.encode(part))
        return
    now = SystemClock().now()
    say(
        explain(
            record, state, now=now, resources=resources, entities=entities, predictors=predictors
        )
    )


async def _read(kafka: KafkaSettings, node: str) -> tuple[PredictionRecord, NodeStateRecord | None]:
    try:
        await require_topics(kafka, (PREDICTIONS, NODE_STATE))
    except BrokerUnavailableError as error:
        raise BrokerUnavailableError(
            f"no Kafka broker answers at {kafka.bootstrap_servers}, and predictions are read there",
            hint="give its address by --bootstrap-servers or kafka.bootstrap_servers; "
            "`springtide doctor` looks for what is wrong, `springtide kafka start` starts one here",
        ) from error
    found, state = await asyncio.gather(
        newest(kafka, PREDICTIONS, node), newest(kafka, NODE_STATE, node)
    )
    if found is None:
        raise await no_node(kafka, node, "prediction")
    return (
        decode_json(PredictionRecord, found.value),
        None if state is None else decode_json(NodeStateRecord, state.value),
    )


async def no_node(kafka: KafkaSettings, node: str, what: str) -> NotReadyError:
    """The error that there is no `what` of `node`, with names that may have been meant."""
    near = await names_near(kafka, node)
    if node in near:
        hint = "the node has reported lately: one may follow with its next window"
    elif near:
        hint = f"did you mean {printable(', '.join(near))}?"
    else:
        hint = "`springtide top` shows the nodes that report"
    return NotReadyError(f"there is no {what} of node {node!r:.100}", hint=hint)
