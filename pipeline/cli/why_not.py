"""`springtide why-not`: whether a node would take a pod, and why not."""

import asyncio
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from pipeline.cli.extender_client import AskedExtender, extender_options
from pipeline.cli.options import quiet, settings_options
from pipeline.cli.placement_question import SETTINGS, answer_to, question_of
from pipeline.cli.safe_output import printable, say
from pipeline.cli.score import best_first
from pipeline.errors import UsageError
from pipeline.extender.explain_documents import Explanation, NodeExplanation
from pipeline.kafka.topic_admin import require_topics
from pipeline.processors.loadaware.usage_thresholds import age_text
from pipeline.settings import Settings
from pipeline.sources.pod_manifests import pod_on_topic
from pipeline.topics.registry import PODS

_REFUSED: Final = 4


@click.command(
    epilog="Exit codes: 0 the node would take it, 1 failure, 2 usage, or pod or node are not "
    "known, 3 topics are missing, 4 the node refuses it."
)
@click.argument("names", nargs=-1, required=True, metavar="[POD] NODE")
@click.option(
    "-f", "--filename", "file", type=click.Path(path_type=Path),
    help="The pod of this file instead of POD: a Pod, or a Deployment or other that makes one.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the answer about this node as JSON.")
@extender_options
@settings_options(*SETTINGS, "kafka.partitions")
def command(
    settings: Settings,
    names: tuple[str, ...],
    file: Path | None,
    as_json: bool,
    extender: AskedExtender | None,
) -> None:
    """Show whether NODE would take POD, and if not, by which rule and which numbers.

    POD is namespace/name, or a name in the namespace default, as the topic of pods has it. The
    answer is what a scheduler would be told by an extender in mode act: by the one that is asked,
    else by one with these settings. What kube-scheduler checks by itself (requests that do not fit,
    taints, affinity) is not looked at.

    \b
    Examples:
      springtide why-not shop/web-0 node-1
      springtide why-not -f pod.yaml node-1
      springtide why-not web-0 node-1 --extender http://localhost:8888 --json | jq .items
    """
    quiet(settings)
    if len(names) != (1 if file else 2):
        raise UsageError(
            f"{len(names)} names are given", hint="write `why-not POD NODE`, or `-f FILE NODE`"
        )
    node = names[-1]
    question = question_of(file) if file else asyncio.run(_on_topic(settings, names[0]))
    found = asyncio.run(answer_to(settings, extender, question))
    item = _of_node(found, node)
    if as_json:
        click.echo(msgspec.json.encode(msgspec.structs.replace(found, items=(item,))))
    else:
        say(told(found, item))
    if not item.passes:
        raise click.exceptions.Exit(_REFUSED)


async def _on_topic(settings: Settings, title: str) -> bytes:
    await require_topics(settings.kafka, (PODS,))
    return await pod_on_topic(settings.kafka, title)


def _of_node(found: Explanation, node: str) -> NodeExplanation:
    for item in found.items:
        if item.node == node:
            return item
    near = difflib.get_close_matches(node, [item.node for item in found.items], n=3)
    raise UsageError(
        f"node {node!r:.300} is not known",
        hint=f"did you mean {printable(', '.join(near))}?" if near else "see `springtide top`",
    )


def told(found: Explanation, item: NodeExplanation) -> Iterator[str]:
    """The answer about one node in words."""
    pod, node = found.pod.title, item.node
    if not item.passes:
        yield f"{node} would not take {pod}: {item.reason}"
        helps = "may help" if item.curable else "would not help"
        yield f"  kube-scheduler's preemption {helps}"
    elif item.verdict == "exempt":
        yield f"{node} would take {pod}: pods of a DaemonSet pass everywhere"
    elif item.verdict == "unknown":
        yield f"{node} would take {pod}: it is not judged, its usage is not known"
    else:
        yield f"{node} would take {pod}"
    if item.passes:
        passing = [one.node for one in best_first(found.items) if one.passes]
        parts = ", ".join(f"{plugin} {score}" for plugin, score in item.plugins.items())
        rank = f"number {passing.index(node) + 1} of the {len(passing)} that would take it"
        yield f"  score {item.score} of 100{f' ({parts})' if parts else ''}, {rank}"
    if item.age_seconds is not None:
        stale = ": stale" if item.stale else ""
        yield f"  its last window ended {age_text(item.age_seconds)}{stale}"
    if found.pod.node == node:
        yield "  the pod is on this node already: what it takes there is counted besides"
    if found.mode == "observe":
        yield "  this extender is in mode observe: the scheduler is told that every node passes"
