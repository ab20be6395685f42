"""`springtide recommend`: recommend requests for the pods of each owner."""

import asyncio
import json
import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import click

from pipeline.agents.bank_settings import model_config
from pipeline.agents.recommendation_inputs import add_nodes
from pipeline.cli.help_sections import Command
from pipeline.cli.options import KAFKA_CLIENT, settings_options, silence_logs
from pipeline.cli.safe_output import print_lines, printable, suggestion
from pipeline.errors import CheckpointError, NotReadyError, UsageError
from pipeline.kafka.client import client_options, translated_errors
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.topic_admin import require_topics
from pipeline.processors.explain.text_columns import align_columns
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.recommendation import Advice, PodOwner, Recommendation, WorkloadSums
from pipeline.settings import Settings
from pipeline.times import format_time
from pipeline.topics.registry import CHECKPOINTS, PODS

_HEADERS: Final = (
    "OWNER", "RESOURCE", "LOWER", "TARGET", "UPPER", "DAYS", "PODS", "SAMPLES", "POD-MEDIAN",
    "POD-MAX",
)  # fmt: skip
_COLUMN_HELP: Final = {
    "Columns": [
        ("LOWER, UPPER", "Bounds for each pod as a whole: a request within them need not change."),
        ("TARGET", "Recommended request for each pod as a whole."),
        ("DAYS", "Length of the history."),
        ("PODS", "Pods with samples, and all pods of the owner."),
        ("POD-MEDIAN, POD-MAX", "The pods' own peaks: p95 of CPU, p98 of memory."),
    ]
}
_MAX_SIMILAR: Final = 3


class OwnerFilter:
    """Accepts the owners that the argument OWNER names, and collects similar names in `similar`.

    Raises `UsageError` if the text is not an owner.
    """

    def __init__(self, text: str) -> None:
        *kind, self._namespace, self._name = ["", *text.split("/")]
        self._kind = "".join(kind).casefold()
        if text.count("/") not in (1, 2) or not self._name or not self._namespace:
            raise UsageError(
                f"{text!r:.100} is not an owner", hint="give Kind/namespace/name or namespace/name"
            )
        self.similar: dict[PodOwner, None] = {}

    def __call__(self, owner: PodOwner) -> bool:
        if owner.namespace != self._namespace:
            return False
        if owner.name == self._name and self._kind in ("", owner.kind.casefold()):
            return True
        if owner.name.startswith(self._name) and len(self.similar) < _MAX_SIMILAR:
            self.similar[owner] = None
        return False


@click.command(
    cls=Command,
    exit_codes={
        0: "shown",
        3: "topics are missing",
        4: "no pod of this owner, or none has samples",
    },
    tables=_COLUMN_HELP,
)
@click.argument("owner", required=False, metavar="[OWNER]")
@click.option(
    "--json", "as_json", is_flag=True,
    help="Print JSON with the fields of VerticalPodAutoscaler and Recommendation.",
)  # fmt: skip
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def command(settings: Settings, owner: str | None, as_json: bool) -> None:
    """Recommend requests for the pods of OWNER, or of every owner.

    The command recommends as the Vertical Pod Autoscaler does: quantiles of the usage of all pods
    of an owner on all nodes, from the newest checkpoints. OWNER is Kind/namespace/name or
    namespace/name of the pods' controller, which for a Deployment is its ReplicaSet. Nothing is
    changed. Unknown amounts are `-`.

    \b
    Examples:
      springtide recommend
      springtide recommend StatefulSet/shop/db
      springtide recommend shop/db --json | jq '.items[].recommendation'
    """
    selected = None if owner is None else OwnerFilter(owner)
    silence_logs(settings, "aiokafka")
    workloads = WorkloadSums(model_config(settings))
    failed = asyncio.run(read_models(settings, workloads, selected))
    # With an owner selected, the pods of all others count as unrecorded.
    _print_warnings(workloads.unrecorded_pods if selected is None else 0, failed)
    recommendations = workloads.recommendations()
    if as_json:
        items = [owner_document(item) for item in recommendations]
        click.echo(json.dumps({"items": items}, indent=2))
    elif recommendations:
        print_lines(table_lines(recommendations))
    if not recommendations:
        raise NotReadyError(
            "there are no pods" if owner is None else f"there are no pods of {owner!r:.300}",
            hint=_hint(selected),
        )
    if not any(item.known for item in recommendations):
        raise NotReadyError(
            "no model of these pods has samples",
            hint="workers write checkpoints every worker.checkpoint_interval_seconds; check them "
            "with `springtide model inspect NODE --pods`",
        )


async def read_models(
    settings: Settings, workloads: WorkloadSums, selected: OwnerFilter | None
) -> dict[str, CheckpointError]:
    kafka = settings.kafka
    await require_topics(kafka, (PODS, CHECKPOINTS))
    with translated_errors(kafka, "reading pods and checkpoints"):
        return await add_nodes(
            workloads, selected, prefix=kafka.topic_prefix, partitions=kafka.partitions,
            open_reader=partial(open_reader, client_options(kafka)),
        )  # fmt: skip


def _print_warnings(unrecorded_pods: int, failed: dict[str, CheckpointError]) -> None:
    """Print to standard error what the recommendations lack."""
    if failed:
        node, error = next(iter(failed.items()))
        text = f"warning: skipped {len(failed)} nodes, such as {node}: {error.message}"
        click.echo(printable(text), err=True)
    if unrecorded_pods:
        text = f"warning: skipped {unrecorded_pods} pods with models but without a record"
        click.echo(text, err=True)


def _hint(selected: OwnerFilter | None) -> str:
    if selected is None:
        return "start `springtide watcher`, or set worker.pods_file"
    return suggestion(
        map(str, selected.similar),
        "give the controller of the pods: the ReplicaSet of a Deployment, the Job of a CronJob",
    )


def table_lines(recommendations: Iterable[Recommendation]) -> Iterator[str]:
    """Yield two lines per owner, CPU and memory."""
    rows = [row for recommendation in recommendations for row in _rows(recommendation)]
    return align_columns([list(_HEADERS), *rows])


def _rows(recommendation: Recommendation) -> Iterator[list[str]]:
    for resource, advice in zip(
        RESOURCES, (recommendation.cpu, recommendation.memory), strict=True
    ):
        amounts = (advice.lower, advice.target, advice.upper)
        yield [
            str(recommendation.owner),
            resource,
            *(_format_amount(resource, amount) for amount in amounts),
            f"{advice.confidence_days:.1f}" if advice.pods else "-",
            f"{advice.pods}/{recommendation.pods}",
            str(advice.samples) if advice.pods else "none",
            *(_format_amount(resource, peak) for peak in (advice.peak_median, advice.peak_max)),
        ]


def _format_amount(resource: str, amount: float) -> str:
    if math.isnan(amount):
        return "-"
    return _quantity(resource, amount) if resource == "cpu" else f"{math.ceil(amount / 2**20)}Mi"


def owner_document(recommendation: Recommendation) -> dict[str, Any]:
    """Return the JSON item of an owner.

    `recommendation` has the form of a VerticalPodAutoscaler's status, `koordinator` that of a
    Recommendation of Koordinator. Both are for a pod as a whole.
    """
    by_resource = dict(zip(RESOURCES, (recommendation.cpu, recommendation.memory), strict=True))
    target = _resource_list({name: advice.target for name, advice in by_resource.items()})
    vpa = {
        "target": target,
        "lowerBound": _resource_list({name: advice.lower for name, advice in by_resource.items()}),
        "upperBound": _resource_list({name: advice.upper for name, advice in by_resource.items()}),
        "uncappedTarget": target,
    }
    return {
        "owner": recommendation.owner._asdict(),
        "as_of": None
        if recommendation.end_ms == NEVER
        else format_time(recommendation.end_ms / 1000),
        "pods": recommendation.pods,
        "resources": {name: _resource_facts(name, advice) for name, advice in by_resource.items()},
        "recommendation": {"containerRecommendations": [vpa] if target else []},
        "koordinator": _koordinator_document(recommendation.owner, target),
    }


def _resource_facts(resource: str, advice: Advice) -> dict[str, Any]:
    peaks = {"median": advice.peak_median, "max": advice.peak_max}
    return {
        "pods_with_samples": advice.pods,
        "samples": advice.samples,
        "history_days": advice.confidence_days if advice.pods else None,
        "pod_peaks": {
            name: None if math.isnan(peak) else _quantity(resource, peak)
            for name, peak in peaks.items()
        },
    }


def _koordinator_document(owner: PodOwner, target: dict[str, str]) -> dict[str, Any]:
    workload = {"kind": owner.kind, "name": owner.name}
    return {
        "apiVersion": "analysis.koordinator.sh/v1alpha1",
        "kind": "Recommendation",
        "metadata": {"namespace": owner.namespace, "name": owner.name},
        "spec": {"target": {"type": "workload", "workload": workload}},
        "status": {"containerStatuses": [{"resources": target}] if target else []},
    }


def _resource_list(amounts: dict[str, float]) -> dict[str, str]:
    """Return a ResourceList without unknown amounts."""
    return {
        name: _quantity(name, amount) for name, amount in amounts.items() if not math.isnan(amount)
    }


def _quantity(resource: str, amount: float) -> str:
    """Whole millicores or bytes, rounded up as Kubernetes rounds."""
    return f"{math.ceil(amount * 1000)}m" if resource == "cpu" else str(math.ceil(amount))
