"""`springtide recommend`: show the requests recommended for workloads."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import click
import yaml

from pipeline.agents.recommendation_agent import Places, read_recommendations
from pipeline.cli.help_sections import Command
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.options import KAFKA_CLIENT, output_formats, settings_options, silence_logs
from pipeline.cli.safe_output import print_lines, printable, suggestion
from pipeline.errors import NotReadyError, RecordError, UsageError
from pipeline.kafka.client import client_options, translated_errors
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.topic_admin import require_topics
from pipeline.processors.explain.text_columns import align_columns
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.recommendation_objects import koordinator_object, vpa_object
from pipeline.processors.recommendation_records import savings
from pipeline.settings import Settings
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.recommendations import RecommendationRecord, ResourceList
from pipeline.topics.registry import RECOMMENDATIONS
from pipeline.topics.workloads import Workload

_HEADERS: Final = (
    "WORKLOAD", "RESOURCE", "LOWER", "TARGET", "UPPER", "DAYS", "PODS", "SEEN", "SAMPLES", "AS-OF",
    "REQUESTED", "SAVES",
)  # fmt: skip
_COLUMN_HELP: Final = {
    "Columns": [
        ("LOWER, UPPER", "Bounds for each pod as a whole: a request within them need not change."),
        ("TARGET", "Recommended request for each pod as a whole."),
        ("DAYS", "Length of the history."),
        ("PODS, SEEN", "Pods of today, and pods that the history has."),
        ("AS-OF", "End of the newest window with a sample."),
        ("REQUESTED", "Requests of all pods that have not ended and are not being deleted."),
        ("SAVES", "What TARGET would save of REQUESTED; negative: it would cost."),
    ]
}
_MAX_SIMILAR: Final = 3


class WorkloadFilter:
    """Accepts the workloads that the argument WORKLOAD names, and collects similar names.

    Raises `UsageError` if the text is not the name of a workload.
    """

    def __init__(self, text: str) -> None:
        *kind, self.namespace, self._name = ["", *text.split("/")]
        self._kind = "".join(kind).casefold()
        if text.count("/") not in (1, 2) or not self._name or not self.namespace:
            raise UsageError(
                f"{text!r:.100} is not a workload",
                hint="give Kind/namespace/name or namespace/name",
            )
        self.similar: dict[Workload, None] = {}

    def __call__(self, workload: Workload) -> bool:
        if workload.namespace != self.namespace:
            return False
        if workload.name == self._name and self._kind in ("", workload.kind.casefold()):
            return True
        is_similar = workload.name.startswith(self._name) or self._name.startswith(workload.name)
        if is_similar and len(self.similar) < _MAX_SIMILAR:
            self.similar[workload] = None
        return False


@click.command(
    cls=Command,
    exit_codes={0: "shown", 3: "topics are missing", 4: "there is no recommendation yet"},
    tables=_COLUMN_HELP,
)
@click.argument("workload", required=False, metavar="[WORKLOAD]")
@output_formats("vpa", help=", vpa are objects VerticalPodAutoscaler")
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def command(settings: Settings, workload: str | None, output: str) -> None:
    """Show the requests recommended for the pods of WORKLOAD, or of every workload.

    A worker recommends as the Vertical Pod Autoscaler does: quantiles of the usage of all pods of a
    workload on all nodes, past and present. WORKLOAD is Kind/namespace/name or namespace/name, such
    as that of a Deployment. Nothing is changed. Unknown amounts are `-`.

    \b
    Examples:
      springtide recommend
      springtide recommend StatefulSet/shop/db
      springtide recommend shop/db -o json | jq '.items[].recommendation'
      springtide recommend Deployment/shop/web -o vpa
    """
    selected = None if workload is None else WorkloadFilter(workload)
    silence_logs(settings, "aiokafka")
    records = run_requests(settings.kafka, read_records(settings, selected))
    if output == "json":
        click.echo(json.dumps({"items": [item_document(record) for record in records]}, indent=2))
    elif output == "vpa":
        objects = [vpa_object(record) for record in records]
        click.echo(yaml.safe_dump_all(objects, sort_keys=False, width=100), nl=False)
    elif records:
        print_lines(table_lines(records))
    if not records:
        raise NotReadyError(
            "there is no recommendation"
            if workload is None
            else f"there is no recommendation for {workload!r:.300}",
            hint=suggestion(
                map(str, selected.similar if selected else ()),
                "workers publish them every worker.recommendation_interval_seconds, from "
                "checkpoints; a pod without a controller has none",
            ),
        )


async def read_records(
    settings: Settings, selected: WorkloadFilter | None
) -> list[RecommendationRecord]:
    """The wanted recommendations by namespace, kind and name."""
    kafka = settings.kafka
    await require_topics(kafka, (RECOMMENDATIONS,))
    places = Places(
        kafka.topic_prefix, kafka.partitions, partial(open_reader, client_options(kafka))
    )
    own = None if selected is None else partition_of(selected.namespace, kafka.partitions)
    with translated_errors(kafka, "reading recommendations"):
        values = await read_recommendations(places, None if own is None else own.__eq__)
    records = []
    for (_, key), value in values.items():
        try:
            records.append(decode_json(RecommendationRecord, value))
        except RecordError as error:
            text = f"warning: skipped the record {key.decode(errors='replace')}: {error.message}"
            click.echo(printable(text), err=True)
    wanted = {_workload(record): record for record in records}
    return [wanted[key] for key in sorted(wanted) if selected is None or selected(key)]


def _workload(record: RecommendationRecord) -> Workload:
    return Workload(record.namespace, record.kind, record.name)


def table_lines(records: Iterable[RecommendationRecord]) -> Iterator[str]:
    """Yield two lines per workload, CPU and memory."""
    rows = [row for record in records for row in _rows(record)]
    return align_columns([list(_HEADERS), *rows])


def _rows(record: RecommendationRecord) -> Iterator[list[str]]:
    for container in record.recommendation.container_recommendations:
        lists = container.lower_bound, container.target, container.upper_bound
        saved = savings(record)
        for resource in RESOURCES:
            yield [
                str(_workload(record)),
                resource,
                *(_amount(resource, amounts) for amounts in lists),
                f"{record.history_days:.1f}",
                str(record.pods),
                str(record.pods_seen),
                str(record.samples),
                record.as_of,
                _amount(resource, record.requested),
                _amount(resource, saved, math.floor),
            ]


def _amount(resource: str, amounts: ResourceList, whole: Callable[[float], int] = math.ceil) -> str:
    quantity = amounts.get(resource, "-")
    is_bytes = resource == "memory" and quantity.removeprefix("-").isdecimal()
    return f"{whole(int(quantity) / 2**20)}Mi" if is_bytes else quantity


def item_document(record: RecommendationRecord) -> dict[str, Any]:
    """Return the JSON item of a workload.

    `recommendation` has the form of a VerticalPodAutoscaler's status, `koordinator` that of a
    Recommendation of Koordinator. Both are for a pod as a whole. `saves` is for all replicas.
    """
    document: dict[str, Any] = json.loads(encode_json(record))
    document["saves"] = savings(record)
    document["koordinator"] = koordinator_object(record)
    return document
