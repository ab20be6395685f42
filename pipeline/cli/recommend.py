"""`springtide recommend`: show the requests recommended for workloads."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

import click

from pipeline.agents.recommendation_agent import Places, read_recommendations
from pipeline.cli.help_sections import Command
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.kubernetes_yaml import objects_yaml
from pipeline.cli.options import KAFKA_CLIENT, output_formats, settings_options, silence_logs
from pipeline.cli.safe_output import print_lines, printable, suggestion
from pipeline.errors import NotReadyError, RecordError
from pipeline.kafka.client import client_options, translated_errors
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.topic_admin import require_topics
from pipeline.processors.explain.text_columns import align_columns
from pipeline.processors.kubernetes.typed_names import TypedName, read_typed_name
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.recommendation_objects import koordinator_object, vpa_object
from pipeline.processors.recommendation_records import savings
from pipeline.settings import Settings
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.recommendations import (
    ContainerRecommendation,
    RecommendationRecord,
    ResourceList,
)
from pipeline.topics.registry import RECOMMENDATIONS
from pipeline.topics.workloads import Workload

_HEADERS: Final = (
    "WORKLOAD", "CONTAINER", "RESOURCE", "LOWER", "TARGET", "UPPER", "DAYS", "PODS", "SEEN",
    "SAMPLES", "AS-OF", "REQUESTED", "SAVES", "OOM-KILLED", "OOM-PEAK",
)  # fmt: skip
_COLUMN_HELP: Final = {
    "Columns": [
        ("CONTAINER", "With --containers: - is the pod as a whole."),
        ("LOWER, UPPER", "Bounds for each pod as a whole: a request within them need not change."),
        ("TARGET", "Recommended request for each pod as a whole."),
        ("DAYS", "Length of the history."),
        ("PODS, SEEN", "Pods of today, and pods that the history has."),
        ("AS-OF", "End of the newest window with a sample."),
        ("REQUESTED", "Requests of all pods that have not ended and are not being deleted."),
        ("SAVES", "What TARGET would save of REQUESTED; negative: it would cost."),
        ("OOM-KILLED, OOM-PEAK", "The last OOM kill, and the peak of memory as which it counts."),
    ]
}
_MAX_SIMILAR: Final = 3


def selected(workloads: Iterable[Workload], typed: TypedName) -> list[Workload]:
    """The workloads that `typed` names; without one, those whose names begin so."""
    possible = [workload for workload in workloads if typed.could_be(workload)]
    exact = [workload for workload in possible if workload.name == typed.name]
    return exact or [each for each in possible if each.name.startswith(typed.name)]


def similar(workloads: Iterable[Workload], typed: TypedName) -> list[Workload]:
    """Some workloads of the namespace with a longer or shorter name, of any kind."""
    near = (
        workload
        for workload in workloads
        if typed.namespace in ("", workload.namespace)
        and (workload.name.startswith(typed.name) or typed.name.startswith(workload.name))
    )
    return list(islice(near, _MAX_SIMILAR))


@click.command(
    cls=Command,
    exit_codes={0: "shown", 3: "topics are missing", 4: "there is no recommendation yet"},
    tables=_COLUMN_HELP,
)
@click.argument("workload", required=False, metavar="[WORKLOAD]")
@output_formats("vpa", help=", vpa are objects VerticalPodAutoscaler")
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
@click.option(
    "--containers", is_flag=True, help="Show the containers of each pod, too, in the table."
)
def command(settings: Settings, workload: str | None, output: str, containers: bool) -> None:
    """Show the requests recommended for the pods of WORKLOAD, or of every workload.

    A worker recommends as the Vertical Pod Autoscaler does: quantiles of the usage of all pods of a
    workload on all nodes, past and present. WORKLOAD is name, namespace/name, kind/name or
    kind/namespace/name; without such a workload, those whose names begin so are shown. Nothing is
    changed. Unknown amounts are `-`.

    \b
    Examples:
      springtide recommend
      springtide recommend deploy/web
      springtide recommend deploy/web --containers
      springtide recommend statefulset/shop/db
      springtide recommend shop/db -o json | jq '.items[].recommendation'
      springtide recommend Deployment/shop/web -o vpa
    """
    typed = None if workload is None else read_typed_name(workload)
    silence_logs(settings, "aiokafka")
    known = run_requests(
        settings.kafka, read_records(settings, None if typed is None else typed.namespace)
    )
    records = [known[key] for key in (known if typed is None else selected(known, typed))]
    if output == "json":
        click.echo(json.dumps({"items": [item_document(record) for record in records]}, indent=2))
    elif output == "vpa":
        objects = [vpa_object(record) for record in records]
        click.echo(objects_yaml(objects), nl=False)
    elif records:
        print_lines(table_lines(records, with_containers=containers))
    if not records:
        raise NotReadyError(
            "there is no recommendation"
            if workload is None
            else f"there is no recommendation for {workload!r:.300}",
            hint=suggestion(
                map(str, similar(known, typed) if typed else ()),
                "workers publish them every worker.recommendation_interval_seconds, from "
                "checkpoints; a pod without a controller has none",
            ),
        )


async def read_records(
    settings: Settings, namespace: str | None
) -> Mapping[Workload, RecommendationRecord]:
    """The recommendations by workload, sorted; without those of other partitions than that of
    `namespace`."""
    kafka = settings.kafka
    await require_topics(kafka, (RECOMMENDATIONS,))
    places = Places(
        kafka.topic_prefix, kafka.partitions, partial(open_reader, client_options(kafka))
    )
    own = partition_of(namespace, kafka.partitions) if namespace else None
    with translated_errors(kafka, "reading recommendations"):
        values = await read_recommendations(places, None if own is None else own.__eq__)
    records = []
    for (_, key), value in values.items():
        try:
            records.append(decode_json(RecommendationRecord, value))
        except RecordError as error:
            text = f"warning: skipped the record {key.decode(errors='replace')}: {error.message}"
            click.echo(printable(text), err=True)
    by_workload = {_workload(record): record for record in records}
    return {workload: by_workload[workload] for workload in sorted(by_workload)}


def _workload(record: RecommendationRecord) -> Workload:
    return Workload(record.namespace, record.kind, record.name)


def table_lines(
    records: Iterable[RecommendationRecord], *, with_containers: bool = False
) -> Iterator[str]:
    """Yield two lines per workload, CPU and memory, and two of each container if wanted."""
    rows = [list(_HEADERS)]
    for record in records:
        rows += _pod_rows(record)
        if with_containers:
            rows += _container_rows(record)
    return align_columns(rows if with_containers else [[row[0], *row[2:]] for row in rows])


def _pod_rows(record: RecommendationRecord) -> Iterator[list[str]]:
    saved, kills = savings(record), record.oom_kills
    for pod in record.recommendation.container_recommendations:
        for resource in RESOURCES:
            yield [
                *_first_cells(record, "-", resource, pod),
                f"{record.history_days:.1f}",
                str(record.pods),
                str(record.pods_seen),
                str(record.samples),
                record.as_of,
                _amount(resource, record.requested),
                _amount(resource, saved, math.floor),
                *(
                    (kills.last_at, _amount(resource, {resource: kills.peak}))
                    if kills is not None and resource == "memory"
                    else ("-", "-")
                ),
            ]


def _container_rows(record: RecommendationRecord) -> Iterator[list[str]]:
    for container in record.containers:
        for resource in RESOURCES:
            cells = _first_cells(record, container.container_name, resource, container)
            yield [*cells, *["-"] * (len(_HEADERS) - len(cells))]


def _first_cells(
    record: RecommendationRecord, name: str, resource: str, amounts: ContainerRecommendation
) -> list[str]:
    lists = amounts.lower_bound, amounts.target, amounts.upper_bound
    return [str(_workload(record)), name, resource, *(_amount(resource, each) for each in lists)]


def _amount(resource: str, amounts: ResourceList, whole: Callable[[float], int] = math.ceil) -> str:
    quantity = amounts.get(resource, "-")
    # A record may have any text, also one with more digits than Python reads.
    is_bytes = resource == "memory" and re.fullmatch("-?[0-9]{1,20}", quantity) is not None
    return f"{whole(int(quantity) / 2**20)}Mi" if is_bytes else quantity


def item_document(record: RecommendationRecord) -> dict[str, Any]:
    """Return the JSON item of a workload.

    `recommendation` has the form of a VerticalPodAutoscaler's status, for the pod as a whole,
    `containers` for each container. `koordinator` is a Recommendation of Koordinator, per container
    where containers are known. `saves` is for all replicas.
    """
    document: dict[str, Any] = json.loads(encode_json(record))
    document["saves"] = savings(record)
    document["koordinator"] = koordinator_object(record)
    return document
