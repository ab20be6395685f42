"""`springtide policy`: a `slo-controller-config` checked, and what it is for each node."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from pipeline.cli.options import settings_options
from pipeline.cli.safe_output import printable, say
from pipeline.errors import InvalidPolicyError, InvalidRecordError
from pipeline.processors.policy.amplification import AMPLIFICATION, node_ratios, ratios_text
from pipeline.processors.policy.config_sections import Section, document
from pipeline.processors.policy.load_configmap import Policy, Problem
from pipeline.processors.policy.load_slo_config import (
    BURST,
    HOST_APPLICATIONS,
    QOS,
    SYSTEM,
    THRESHOLD,
)
from pipeline.processors.policy.nodemetric_spec import metric_spec
from pipeline.processors.policy.normalization import (
    NORMALIZATION,
    CpuInfo,
    node_ratio,
    read_cpu_info,
)
from pipeline.processors.policy.policy_in_force import KEYS, Policies, load_policies, with_policy
from pipeline.settings import Settings
from pipeline.sources.object_files import read_objects
from pipeline.sources.policy_file import filter_limits, read_config_map
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord

_FOUND = 3


@click.command(
    epilog="Exit codes: 0 all of it is in force, 1 the file has no such ConfigMap, or its part for "
    "the cluster cannot be used, 2 usage, 3 a part of it is not in force."
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--nodes", type=click.Path(path_type=Path),
    help="Show what it comes to for the nodes in this file (kubectl get nodes -o json; with "
    "nodes,noderesourcetopologies also their CPU normalization).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON, by node.")
@settings_options("extender.cpu_threshold_percent", "extender.memory_threshold_percent")
def command(settings: Settings, file: Path, nodes: Path | None, as_json: bool) -> None:
    """Check the policy in FILE, before or after it is in the cluster.

    FILE is the ConfigMap slo-controller-config as kubectl prints it, YAML or JSON, or a List that
    has it. Says of every part that cannot be used what is wrong with it, and what cannot be meant
    together, also with the thresholds of our scheduler extender. With --nodes also what each node
    ends up with: the cluster's values, the first entry that selects it, its annotations and its
    labels; with --json the specs of its NodeMetric and NodeSLO, too. Nothing is written, and
    neither Kafka nor Kubernetes is asked.

    \b
    Examples:
      springtide policy slo-controller-config.yaml
      springtide policy slo-controller-config.yaml --nodes nodes.json --json | jq '."node-1"'
    """
    policies, problems = load_policies(read_config_map(file), None, filter_limits(settings))
    refused = [problem for problem in problems if not problem.taken]
    if any(problem.where in KEYS for problem in refused):
        raise InvalidPolicyError(
            "\n".join([f"{file}: {problems[0]}", *map(str, problems[1:])]),
            hint="mend it; until then what was good before stays in force",
        )
    found = [] if nodes is None else list(_nodes(policies, nodes))
    told = [str(problem) for problem in problems]
    for one in found:
        told += [f"node {one.record.node}: {problem}" for problem in one.problems]
        refused += [problem for problem in one.problems if not problem.taken]
    click.echo("".join(f"warning: {line}\n" for line in map(printable, told)), err=True, nl=False)
    if not as_json:
        say(_summary(policies, found))
    elif nodes is None:
        click.echo(json.dumps({"cluster": _cluster(policies)}, indent=2))
    else:
        click.echo(json.dumps({one.record.node: _whole(one) for one in found}, indent=2))
    if refused:
        raise click.exceptions.Exit(_FOUND)


class _Node(NamedTuple):
    record: NodeRecord
    problems: tuple[Problem, ...]
    cpu: CpuInfo | None


def _nodes(policies: Policies, file: Path) -> Iterator[_Node]:
    """The nodes in the file, with what is in force for each."""
    found = read_objects(file, "Node")
    if found.problems:
        first = found.problems[0]
        raise InvalidRecordError(f"{file}: {first.name}: {first.reason}", hint="get it anew")
    infos = _cpu_infos(file)
    for entry in found.entries.values():
        record, problems = with_policy(decode_json(NodeRecord, entry.value or b""), policies)
        yield _Node(record, problems, infos.get(record.node))


def _cpu_infos(file: Path) -> dict[str, CpuInfo]:
    """What the NodeResourceTopology objects in the file say of CPUs, by node."""
    tree = msgspec.json.decode(file.read_bytes())
    items = tree.get("items") if isinstance(tree, dict) else tree
    found = {}
    for one in items or []:
        if isinstance(one, dict) and one.get("kind") == "NodeResourceTopology":
            metadata = one.get("metadata") or {}
            name = str(metadata.get("name"))
            try:
                info = read_cpu_info(metadata.get("annotations") or {})
            except InvalidPolicyError as error:
                raise InvalidRecordError(
                    f"{file}: topology {name:.253}: {error.message}"
                ) from error
            if info is not None:
                found[name] = info
    return found


# -- as JSON


def _cluster(policies: Policies) -> dict[str, Any]:
    """What holds where no entry and no node says otherwise, by key."""
    assert policies.colocation is not None
    assert policies.springtide is not None
    strategy = document(policies.colocation.cluster) | document(policies.springtide.cluster)
    others = {section.key: document(policy.cluster) for section, policy in _others(policies)}
    return {"on": bool(policies.colocation.cluster.enable), "strategy": strategy, **others}


def _whole(of: _Node) -> dict[str, Any]:
    """All that is in force for a node, and what is to be written of it."""
    record = of.record
    return {
        "on": record.overcommit is not None,
        "strategy": _strategy(record),
        "nodeMetric": metric_spec(record),
        "nodeSLO": _plain(record.slo),
        "hostApplications": record.host_apps,
        "cpuNormalization": {**_plain(record.cpu_normalization), **_ratio(of)},
        "amplification": {**_plain(record.amplification), **_ratios(record)},
    }


def _ratio(of: _Node) -> dict[str, Any]:
    try:
        return {"annotation": node_ratio(of.record, of.cpu)}
    except InvalidPolicyError as error:
        return {"annotation": None, "why": error.message}


def _ratios(of: NodeRecord) -> dict[str, Any]:
    try:
        return {"annotation": ratios_text(node_ratios(of) or {})}
    except InvalidPolicyError as error:
        return {"annotation": None, "why": error.message}


def _strategy(of: NodeRecord) -> dict[str, Any]:
    return {**(of.colocation or {}), **(of.springtide or {})}


def _plain(of: msgspec.Raw) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(of)
    return found


# -- for people

_OTHERS: Final[tuple[Section[Any], ...]] = (
    *(NORMALIZATION, AMPLIFICATION),
    *(THRESHOLD, QOS, BURST, SYSTEM, HOST_APPLICATIONS),
)


def _others(policies: Policies) -> Iterator[tuple[Section[Any], Policy[Any]]]:
    """The sections beside those of the strategy, and what they say."""
    found = (policies.normalization, policies.amplification, *policies.slo)
    for section, policy in zip(_OTHERS, found, strict=True):
        assert policy is not None
        yield section, policy


def _summary(policies: Policies, nodes: Iterable[_Node]) -> Iterator[str]:
    """What a person wants to see: on or off, and what of it differs from the defaults, and for a
    node from the cluster's values."""
    assert policies.colocation is not None
    cluster = _cluster(policies)
    state = "on" if cluster["on"] else "off"
    count = len(policies.colocation.entries)
    yield f"colocation is {state} for the cluster; {count} entries for some nodes"
    for name, value in cluster["strategy"].items():
        yield f"  {name:34} {json.dumps(value)}"
    for section, policy in _others(policies):
        own = _differences(document(section.defaults), document(policy.cluster))
        entries = f"; {len(policy.entries)} entries for some nodes" if policy.entries else ""
        yield f"{section.key}: {own or 'as by default'}{entries}"
    nowhere, _ = with_policy(NodeRecord(node="none"), policies)
    for one in nodes:
        record = one.record
        own = _differences(cluster["strategy"], _strategy(record))
        state = "on" if record.overcommit else "off"
        said = [
            f"{what}: {differs}"
            for what, usual, of in (
                ("NodeSLO", nowhere.slo, record.slo),
                ("CPU normalization", nowhere.cpu_normalization, record.cpu_normalization),
                ("amplification", nowhere.amplification, record.amplification),
            )
            if (differs := _differences(_plain(usual), _plain(of)))
        ]
        yield "; ".join([f"node {record.node}: {state}, {own or 'as the cluster'}", *said])


def _differences(usual: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """What is said otherwise than usual, each value by its path."""
    before, now = dict(_values(usual)), dict(_values(own))
    return ", ".join(
        f"{path} {json.dumps(value)}" for path, value in now.items() if before.get(path) != value
    )


def _values(of: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in of.items():
        if isinstance(value, dict) and value:
            yield from _values(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
