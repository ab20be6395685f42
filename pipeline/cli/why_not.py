"""`springtide why-not`: explain whether a node passes for a pod."""

import asyncio
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from pipeline.cli.explain_request import SETTINGS, read_explain_request, request_explanation
from pipeline.cli.extender_client import ExtenderClient, extender_options
from pipeline.cli.help_sections import Command
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.options import output_option, settings_options, silence_logs
from pipeline.cli.safe_output import print_lines, suggestion
from pipeline.cli.score import best_first
from pipeline.errors import UsageError
from pipeline.extender.explain_documents import Explanation, NodeExplanation
from pipeline.extender.filters import amount
from pipeline.kafka.topic_admin import require_topics
from pipeline.processors.loadaware.usage_readings import age_text
from pipeline.settings import Settings
from pipeline.sources.pod_manifests import pod_on_topic
from pipeline.topics.node_state import Dispute
from pipeline.topics.registry import PODS
from pipeline.topics.resource_amounts import Usage

_REFUSED: Final = 4


@click.command(
    cls=Command,
    exit_codes={
        0: "the node passes",
        2: "invalid usage or settings, or the pod or the node is unknown",
        3: "topics are missing",
        4: "the node is refused",
    },
)
@click.argument("names", nargs=-1, required=True, metavar="[POD] NODE")
@click.option(
    "-f", "--filename", "file", type=click.Path(path_type=Path),
    help="Manifest of the pod, in place of POD: a Pod, or an object with a pod template; - for "
    "standard input.",
)  # fmt: skip
@output_option
@extender_options
@settings_options(*SETTINGS, "kafka.partitions", shown=("extender.scheduler_config_file",))
def command(
    settings: Settings,
    names: tuple[str, ...],
    file: Path | None,
    as_json: bool,
    extender: ExtenderClient | None,
) -> None:
    """Explain whether NODE passes for POD: by which rule, with which numbers.

    POD is name, namespace/name, kind/name or kind/namespace/name, of a pod on springtide.pods or of
    its workload, or the beginning of the name; the namespace is default unless given. Of several
    pods of a workload one that waits for a node is taken, else the newest.

    The command evaluates the filter and scores of an extender in mode act: those of the extender
    given by --extender, else those of the local settings. kube-scheduler's own checks (resource
    fit, taints, affinity) are not evaluated.

    \b
    Examples:
      springtide why-not shop/web-0 node-1
      springtide why-not deploy/web node-1
      springtide why-not -f pod.yaml node-1
      springtide why-not web-0 node-1 --extender http://localhost:8888 -o json | jq .items
    """
    silence_logs(settings)
    if len(names) != (1 if file else 2):
        raise UsageError("a pod and a node are needed", hint="give POD NODE, or -f FILE NODE")
    node = names[-1]
    request = (
        read_explain_request(file)
        if file
        else run_requests(settings.kafka, _read_pod(settings, names[0]))
    )
    answer = asyncio.run(request_explanation(settings, extender, request))
    item = _find_node(answer, node)
    if as_json:
        click.echo(msgspec.json.encode(msgspec.structs.replace(answer, items=(item,))))
    else:
        print_lines(explanation_lines(answer, item))
    if not item.passes:
        raise click.exceptions.Exit(_REFUSED)


async def _read_pod(settings: Settings, pod: str) -> bytes:
    await require_topics(settings.kafka, (PODS,))
    return await pod_on_topic(settings.kafka, pod)


def _find_node(answer: Explanation, node: str) -> NodeExplanation:
    for item in answer.items:
        if item.node == node:
            return item
    similar = difflib.get_close_matches(node, [item.node for item in answer.items], n=3)
    raise UsageError(
        f"node {node!r:.300} is not known",
        hint=suggestion(
            similar, "`springtide top` lists the nodes; one without a Node object takes no pod"
        ),
    )


def explanation_lines(answer: Explanation, item: NodeExplanation) -> Iterator[str]:
    pod, node = answer.pod.title, item.node
    if answer.pod.node == node:
        yield f"{pod} is already there: it runs on {node}. Another pod like it:"
    if not item.passes:
        yield f"{node} would not take {pod}: {item.reason}"
        yield f"  {item.detail}"
        yield "  kube-scheduler's preemption would not help"
    elif item.verdict == "exempt":
        yield f"{node} would take {pod}: pods of a DaemonSet pass everywhere"
    elif item.verdict == "unknown":
        yield f"{node} would take {pod}: it is not judged, because its usage is unknown"
    elif item.verdict == "estimated":
        yield f"{node} would take {pod}, judged by estimates"
    else:
        yield f"{node} would take {pod}"
    if item.passes:
        passing = [other.node for other in best_first(answer.items) if other.passes]
        parts = ", ".join(f"{plugin} {score}" for plugin, score in item.plugins.items())
        rank = f"rank {passing.index(node) + 1} of the {len(passing)} nodes that would take it"
        yield f"  score {item.score} of 100{f' ({parts})' if parts else ''}, {rank}"
    if item.estimated:
        names = " and ".join(item.estimated)
        yield f"  usage of {names} is unknown: estimates of the pods on the node count"
    if item.dispute is not None:
        yield f"  {_dispute_text(item.dispute)}"
    if item.age_seconds is not None:
        stale = ": stale" if item.stale else ""
        yield f"  its last window ended {age_text(item.age_seconds)}{stale}"
    elif item.new:
        yield "  new node: counted as empty until it reports"
    if answer.mode == "observe":
        yield "  the extender is in mode observe: it lets every node pass"


def _dispute_text(dispute: Dispute) -> str:
    return (
        f"two sources differ since {dispute.since}: {_usage_text(dispute.believed)} counts, "
        f"{dispute.source} reports {_usage_text(dispute.usage)}"
    )


def _usage_text(usage: Usage) -> str:
    amounts = ("cpu", usage.cpu_cores, 1000), ("memory", usage.memory_bytes, 1)
    texts = [amount(name, round(used * unit)) for name, used, unit in amounts if used is not None]
    return " and ".join(texts)
