"""`springtide scheduler`: the configuration of kube-scheduler that asks an extender."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import yaml

from pipeline.cli.options import settings_options
from pipeline.cli.safe_output import printable, say
from pipeline.errors import InvalidPolicyError, SpringtideError
from pipeline.processors.placement.extender_config import Wanted, generated
from pipeline.processors.placement.scheduler_findings import Finding, findings
from pipeline.processors.placement.target_simulation import Load, Outcome, simulate
from pipeline.settings import Settings
from pipeline.sources.scheduler_config import read_document

_FOUND: Final = 3
_HOST: Final = "springtide-extender.springtide-system.svc"

_HEAD: Final = """\
# kube-scheduler asks Springtide: for its --config, or the ConfigMap of your distribution.
# Made by `springtide scheduler config --mode {mode}`; `springtide scheduler check` looks at one
# that was edited. The service is `springtide extender`; docs/reference/extender.md documents it.
"""
_COMMENTS: Final[Mapping[str, str]] = {
    "weight:": """
The extender answers 0 to 10, the scheduler multiplies by weight * 10: with 1 the answer counts
as much as one scoring plugin of weight 1 (0 to 100).""",
    "nodeCacheCapable:": """
Names only. With false the scheduler sends every Node object for every pod and phase (5,000 nodes
are 32 MB); it works, and is the bottleneck of your scheduler.""",
    "ignorable:": """
If the extender is away or not caught up, the scheduler goes on without it. With false no pod of
the cluster is scheduled then, the extender's own pods included.""",
    "httpTimeout:": """
An answer takes milliseconds; let no hanging connection hold up each pod for the usual 5 s.""",
    "enableHTTPS: false": """
Plain HTTP needs both in one trust zone (NetworkPolicy), since the request carries the pod. For
HTTPS give the extender a certificate (extender.tls_cert_file), and --ca-file here.""",
    "enableHTTPS: true": """
Its certificate (extender.tls_cert_file) is checked against caFile, or not at all without one.""",
    "plugins:": """
These go by what is asked for, not by what is used, and would outvote the extender. While it is
away nothing scores by load: enable them again if it is to be away for long. What else scores, such
as PodTopologySpread for pods of a workload (200 points), keeps its say: weight is for that.""",
}
_NOTES: Final = """\

# Notes
# - Not set: managedResources. It would limit the extender to pods that name an extended resource
#   (cpu, memory and kubernetes.io/* are refused).
# - An in-cluster scheduler must be able to resolve the Service: with hostNetwork set its pod's
#   dnsPolicy to ClusterFirstWithHostNet, or put the Service's cluster IP into urlPrefix.
# - percentageOfNodesToScore: from 100 nodes on only a sample of the feasible nodes is scored; the
#   filter sees them one sample at a time, too. 100 makes the choice best and the scheduler slower.
# - An error of prioritize is invisible in the scheduler below log level 5: watch
#   springtide_extender_requests_total{verb="prioritize",status!="200"}.
# - Any extender switches off opportunistic batching of equal pods in the profile.
"""
_OBSERVE_NOTES: Final = """\
# - In mode observe the extender gives no scores: those by requests stay on. Before it acts make the
#   file for that: `springtide scheduler config --mode act`.
"""


@click.group()
def command() -> None:
    """Make and check what kube-scheduler is started with, and try targets.

    docs/reference/extender.md says what an extender can do, and what stays the scheduler's.
    """


@command.command(epilog="Exit codes: 0 printed, 2 usage or settings.")
@click.option("--url", help=f"Where the extender is  [default: its Service, {_HOST}]")
@click.option(
    "--weight", type=click.IntRange(1, 100), default=1, show_default=True,
    help="How much its score counts beside plugins of the scheduler's.",
)  # fmt: skip
@click.option(
    "--profile",
    default="default-scheduler",
    show_default=True,
    help="schedulerName of the profile.",
)
@click.option(
    "--scheduler-kubeconfig", default="/etc/kubernetes/scheduler.conf", show_default=True,
    help="With what the scheduler reaches the API server.",
)  # fmt: skip
@click.option("--ca-file", help="Who signed the extender's certificate, as the scheduler sees it.")
@click.option("--cert-file", help="The scheduler's own certificate, if the extender asks for one.")
@click.option("--key-file", help="Its private key.")
@settings_options("extender.mode", "extender.port")
def config(
    settings: Settings, url: str | None, weight: int, profile: str, scheduler_kubeconfig: str,
    ca_file: str | None, cert_file: str | None, key_file: str | None,
) -> None:  # fmt: skip
    """Print a KubeSchedulerConfiguration that asks the extender.

    For mode observe all of the scheduler's own scores stay as they are. For mode act those are off
    that go by what is asked for (NodeResourcesFit, NodeResourcesBalancedAllocation): they would
    fight what goes by what is used.

    \b
    Examples:
      springtide scheduler config > scheduler.yaml
      springtide scheduler config --mode act --url https://extender:8888 --ca-file /etc/ca.pem
    """
    mode, scheme = settings.extender.mode, "http" if ca_file is None else "https"
    url = url or f"{scheme}://{_HOST}:{settings.extender.port}"
    files = [file for file in (ca_file, cert_file, key_file) if file is not None]
    if files and not url.startswith("https://"):
        raise click.UsageError(f"{files[0]} has no use: {url} is not https:// (--ca-file, --url)")
    if (cert_file is None) != (key_file is None):
        raise click.UsageError("--cert-file and --key-file go together")
    if not profile:
        raise click.UsageError("--profile is empty: every profile has a schedulerName")
    wanted = Wanted(
        url=url,
        mode=mode,
        weight=weight,
        scheduler_name=profile,
        kubeconfig=scheduler_kubeconfig,
        ca_file=ca_file,
        cert_file=cert_file,
        key_file=key_file,
    )
    made = generated(wanted)
    found = list(findings(made, mode))
    if any(one.is_refused for one in found):
        raise click.UsageError(str(next(one for one in found if one.is_refused)))
    for one in found:
        click.echo(printable(f"warning: {one}"), err=True)
    notes = _NOTES + (_OBSERVE_NOTES if mode == "observe" else "")
    click.echo(_HEAD.format(mode=mode) + "\n".join(_commented(made)) + "\n" + notes, nl=False)


def _commented(tree: Mapping[str, Any]) -> Iterator[str]:
    """The tree as YAML, with what is to be said of a key above it."""
    for line in yaml.safe_dump(tree, sort_keys=False).splitlines():
        plain = line.lstrip(" -")
        said = next((text for key, text in _COMMENTS.items() if plain.startswith(key)), "")
        for one in said.splitlines():
            yield f"{' ' * (len(line) - len(plain))}# {one}" if one else ""
        yield line


@command.command(
    epilog="Exit codes: 0 it works (warnings are on standard error), 1 the file is no "
    "KubeSchedulerConfiguration, 2 usage or settings, 3 something in it does not work."
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@click.option(
    "--url", help="Which entry is the extender  [default: the one with springtide in its "
    "urlPrefix, or the only one]",
)  # fmt: skip
@settings_options("extender.mode")
def check(settings: Settings, file: Path, as_json: bool, url: str | None) -> None:
    """Say what in FILE works against the extender.

    FILE is what kube-scheduler is started with (--config). What is right depends on the extender's
    mode: in mode act scores by requests fight its own, in mode observe they are all that there is.
    Of other extenders it is looked at what kube-scheduler refuses. Nothing is asked or changed.

    \b
    Examples:
      springtide scheduler check /etc/kubernetes/scheduler.yaml
      springtide scheduler check scheduler.yaml --mode act --json
    """
    found = read_findings(file, settings, url)
    if as_json:
        click.echo(json.dumps([one._asdict() for one in found], indent=2))
    elif not found:
        mode = settings.extender.mode
        click.echo(f"{file}: goes together with an extender in mode {mode}, as far as is looked at")
    for one in () if as_json else found:
        click.echo(printable(f"{'error' if one.is_refused else 'warning'}: {one}"), err=True)
    if any(one.is_refused for one in found):
        raise click.exceptions.Exit(_FOUND)


def read_findings(file: Path, settings: Settings, url: str | None = None) -> list[Finding]:
    """What is to be said of this file. Raises `SpringtideError` where it cannot be read."""
    try:
        return list(findings(read_document(file), settings.extender.mode, url))
    except OSError as error:
        raise SpringtideError(
            f"cannot read {file}: {error.strerror}", hint="name a file"
        ) from error
    except InvalidPolicyError as error:
        raise InvalidPolicyError(
            f"{file}: {error.message}",
            hint=error.hint or "springtide scheduler config prints one that works",
        ) from error


_USUAL: Final = Load()


@command.command(name="simulate", epilog="Exit codes: 0 printed, 2 usage.")
@click.option(
    "--wanted", type=click.FloatRange(20, 95), default=50.0, show_default=True,
    help="What nodes are to use of their CPU, in percent.",
)  # fmt: skip
@click.option(
    "--nodes", type=click.IntRange(1, 1000), default=_USUAL.nodes, show_default=True,
    help="How many nodes there are.",
)  # fmt: skip
@click.option(
    "--cores", type=click.IntRange(1, 1024), default=_USUAL.capacity_millicores // 1000,
    show_default=True, help="How many cores each of them has.",
)  # fmt: skip
@click.option(
    "--pods", type=click.IntRange(1, 5_000), default=_USUAL.pods, show_default=True,
    help="How many pods come.",
)  # fmt: skip
@click.option(
    "--request", type=click.IntRange(1, 1_000_000), default=_USUAL.request_millicores,
    show_default=True, help="What each asks for, in millicores.",
)  # fmt: skip
@click.option(
    "--used", type=click.FloatRange(0, 10, min_open=True), default=_USUAL.used_share,
    show_default=True, help="Which share of that it uses on average.",
)  # fmt: skip
@click.option(
    "--deviation", type=click.FloatRange(0, 5), default=_USUAL.deviation, show_default=True,
    help="Standard deviation of what it uses, as a share of it.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of chance.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcomes as JSON.")
def simulated(
    wanted: float, nodes: int, cores: int, pods: int, request: int, used: float, deviation: float,
    seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Show what targets of TargetLoadPacking lead to.

    Pods come two in a window of 30 s, each goes to the node that TargetLoadPacking finds best, and
    uses of its request what --used and --deviation say. Shown is the hour after the last one, for a
    target of what is wanted, and for lower ones: pods land until what is expected reaches the
    target, and what is used swings around that.

    \b
    Examples:
      springtide scheduler simulate
      springtide scheduler simulate --wanted 60 --nodes 50 --pods 800 --deviation 0.5
    """
    if not all(map(math.isfinite, (wanted, used, deviation))):
        raise click.UsageError("--wanted, --used and --deviation are numbers")
    load = Load(nodes, cores * 1000, pods, _USUAL.pods_per_window, request, used, deviation)
    found = [simulate(load, wanted - less, wanted, seed) for less in (0.0, 5.0, 10.0, 15.0)]
    if as_json:
        click.echo(json.dumps([one._asdict() for one in found], indent=2))
    else:
        say(_table(found))


def _figures(of: Outcome) -> str:
    if of.average is None or of.share_above is None:
        return "too few pods for a node that is packed"
    share = 100 * of.share_above
    return f"{of.average:>6.1f}%  {of.p95:>5.1f}%  {of.highest:>6.1f}%  {share:>8.1f}%"


def _table(found: list[Outcome]) -> Iterator[str]:
    above = f"OVER {found[0].wanted_percent:g}%"
    yield f"{'TARGET':>6}  {'NODES':>5}  {'AVERAGE':>7}  {'P95':>6}  {'HIGHEST':>7}  {above:>9}"
    for one in found:
        yield f"{one.target_percent:>5g}%  {one.packed_nodes:>5}  {_figures(one)}"
    yield "of the nodes that are packed: what they use in the hour after the last pod came"
    one = found[0]
    if one.waiting_pods:
        yield f"{one.waiting_pods} pods fit nowhere by what they ask for"
    if one.load_percent > one.target_percent:
        yield (
            f"all pods use {one.load_percent:.0f}% of all nodes: no target keeps nodes at "
            f"{one.wanted_percent:g}%"
        )
