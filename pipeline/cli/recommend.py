"""`springtide recommend`: what each pod of a workload should ask for, from the models of all."""

import asyncio
import json
import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import click

from pipeline.agents.bank_settings import model_config
from pipeline.agents.recommendation_inputs import add_nodes
from pipeline.cli.options import KAFKA_CLIENT, quiet_client, settings_options
from pipeline.cli.safe_output import printable, say
from pipeline.errors import CheckpointError, NotReadyError, UsageError
from pipeline.kafka.client import client_options, our_errors
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.topic_admin import require_topics
from pipeline.processors.model.entity_columns import NEVER
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.recommendation import Advice, Owner, Recommendation, Workloads
from pipeline.settings import Settings
from pipeline.times import format_time
from pipeline.topics.registry import CHECKPOINTS, PODS

_TITLES: Final = (
    "OWNER", "RESOURCE", "LOWER", "TARGET", "UPPER", "DAYS", "PODS", "SAMPLES", "POD-MEDIAN",
    "POD-MAX",
)  # fmt: skip
_NEAR: Final = 3


class _Asked:
    """Which owners are asked for, and those of like names that were met meanwhile."""

    def __init__(self, text: str) -> None:
        *kind, self._namespace, self._name = ["", *text.split("/")]
        self._kind = "".join(kind).casefold()
        if text.count("/") not in (1, 2) or not self._name or not self._namespace:
            raise UsageError(
                f"{text!r:.100} is not an owner", hint="write Kind/namespace/name or namespace/name"
            )
        self.near: dict[Owner, None] = {}

    def __call__(self, owner: Owner) -> bool:
        if owner.namespace != self._namespace:
            return False
        if owner.name == self._name and self._kind in ("", owner.kind.casefold()):
            return True
        if owner.name.startswith(self._name) and len(self.near) < _NEAR:
            self.near[owner] = None
        return False


@click.command(
    epilog="Exit codes: 0 shown, 1 failure, 2 usage, 3 topics are missing, 4 no pod of this owner, "
    "or nothing is known of any. LOWER, TARGET and UPPER are for each pod as a whole; DAYS is how "
    "much history they rest on, PODS how many have samples of all that there are. POD-MEDIAN and "
    "POD-MAX are the pods' own peaks, p95 of cpu and p98 of memory. Unknown is `-`."
)
@click.argument("owner", required=False, metavar="[OWNER]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in the words of Kubernetes.")
@settings_options(*KAFKA_CLIENT, "kafka.partitions")
def command(settings: Settings, owner: str | None, as_json: bool) -> None:
    """Show what the pods of OWNER should ask for, or those of every owner.

    As the Vertical Pod Autoscaler recommends it: quantiles of what all pods of the owner used,
    wherever they run, from the newest checkpoints. OWNER is Kind/namespace/name or namespace/name
    of what controls the pods: for a Deployment its ReplicaSet.
    docs/how-to/recommend-requests.md has the
    formulas. Nothing is changed.

    \b
    Examples:
      springtide recommend
      springtide recommend StatefulSet/shop/db
      springtide recommend shop/db --json | jq '.items[].recommendation'
    """
    asked = None if owner is None else _Asked(owner)
    quiet_client(settings)
    workloads = Workloads(model_config(settings))
    failed = asyncio.run(_read(settings, workloads, asked))
    # Where an owner is asked for, all other pods are strangers.
    _warn(workloads.strangers if asked is None else 0, failed)
    found = workloads.recommendations()
    if as_json:
        click.echo(json.dumps({"items": [document(one) for one in found]}, indent=2))
    elif found:
        say(table(found))
    if not found:
        raise NotReadyError(
            "there are no pods" if owner is None else f"there are no pods of {owner!r:.300}",
            hint=_hint(asked),
        )
    if not any(one.known for one in found):
        raise NotReadyError(
            "nothing is known of these pods: no model of any has samples",
            hint="checkpoints are written every worker.checkpoint_interval_seconds: "
            "`springtide model inspect NODE --pods` shows what they hold",
        )


async def _read(
    settings: Settings, workloads: Workloads, asked: _Asked | None
) -> dict[str, CheckpointError]:
    kafka = settings.kafka
    await require_topics(kafka, (PODS, CHECKPOINTS))
    with our_errors(kafka, "reading pods and checkpoints"):
        return await add_nodes(
            workloads, asked, prefix=kafka.topic_prefix, partitions=kafka.partitions,
            open_reader=partial(open_reader, client_options(kafka)),
        )  # fmt: skip


def _warn(strangers: int, failed: dict[str, CheckpointError]) -> None:
    """Say what the numbers lack."""
    if failed:
        node, error = next(iter(failed.items()))
        text = f"nodes left out: {len(failed)}, as {node}: {error.message}"
        click.echo(printable(text), err=True)
    if strangers:
        text = f"pods with models left out: {strangers}, gone, or no source names them"
        click.echo(text, err=True)


def _hint(asked: _Asked | None) -> str:
    if asked is None:
        return "pods come from `worker.pods_file`, see docs/how-to/operate.md"
    if asked.near:
        return f"did you mean {printable(', '.join(map(str, asked.near)))}?"
    return "name what controls the pods: the ReplicaSet of a Deployment, the Job of a CronJob"


def table(found: Iterable[Recommendation]) -> list[str]:
    """Two lines per owner, cpu and memory."""
    grid = [list(_TITLES), *(line for one in found for line in _lines(one))]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in grid
    ]


def _lines(found: Recommendation) -> Iterator[list[str]]:
    for resource, advice in zip(RESOURCES, (found.cpu, found.memory), strict=True):
        amounts = (advice.lower, advice.target, advice.upper)
        yield [
            str(found.owner),
            resource,
            *(_shown(resource, amount) for amount in amounts),
            f"{advice.confidence_days:.1f}" if advice.pods else "-",
            f"{advice.pods}/{found.pods}",
            str(advice.samples) if advice.pods else "none",
            *(_shown(resource, peak) for peak in (advice.peak_median, advice.peak_max)),
        ]


def _shown(resource: str, amount: float) -> str:
    if math.isnan(amount):
        return "-"
    return _quantity(resource, amount) if resource == "cpu" else f"{math.ceil(amount / 2**20)}Mi"


def document(found: Recommendation) -> dict[str, Any]:
    """What is known of an owner, with `recommendation` as a VerticalPodAutoscaler's status has it
    and `koordinator` as a Recommendation of Koordinator; both are for a pod as a whole."""
    by_resource = dict(zip(RESOURCES, (found.cpu, found.memory), strict=True))
    target = _list({name: advice.target for name, advice in by_resource.items()})
    of_vpa = {
        "target": target,
        "lowerBound": _list({name: advice.lower for name, advice in by_resource.items()}),
        "upperBound": _list({name: advice.upper for name, advice in by_resource.items()}),
        "uncappedTarget": target,
    }
    return {
        "owner": found.owner._asdict(),
        "as_of": None if found.end_ms == NEVER else format_time(found.end_ms / 1000),
        "pods": found.pods,
        "resources": {name: _facts(name, advice) for name, advice in by_resource.items()},
        "recommendation": {"containerRecommendations": [of_vpa] if target else []},
        "koordinator": _koordinator(found.owner, target),
    }


def _facts(resource: str, advice: Advice) -> dict[str, Any]:
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


def _koordinator(owner: Owner, target: dict[str, str]) -> dict[str, Any]:
    workload = {"kind": owner.kind, "name": owner.name}
    return {
        "apiVersion": "analysis.koordinator.sh/v1alpha1",
        "kind": "Recommendation",
        "metadata": {"namespace": owner.namespace, "name": owner.name},
        "spec": {"target": {"type": "workload", "workload": workload}},
        "status": {"containerStatuses": [{"resources": target}] if target else []},
    }


def _list(amounts: dict[str, float]) -> dict[str, str]:
    """A ResourceList; what is unknown is not in it."""
    return {
        name: _quantity(name, amount) for name, amount in amounts.items() if not math.isnan(amount)
    }


def _quantity(resource: str, amount: float) -> str:
    """Whole millicores or bytes, rounded up as Kubernetes rounds."""
    return f"{math.ceil(amount * 1000)}m" if resource == "cpu" else str(math.ceil(amount))
