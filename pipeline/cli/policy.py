"""`springtide policy`: check a `slo-controller-config` or a DeschedulerConfiguration, and resolve
it per node."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from pipeline.cli.descheduling_text import (
    descheduling_document,
    descheduling_lines,
    hot_node_text,
)
from pipeline.cli.file_arguments import argument_name, read_argument
from pipeline.cli.help_sections import Command
from pipeline.cli.options import output_option, settings_options
from pipeline.cli.safe_output import print_lines, printable
from pipeline.errors import InvalidPolicyError, InvalidRecordError, SpringtideError
from pipeline.input_files import LARGEST_LIST_BYTES
from pipeline.processors.descheduling.descheduler_config import Descheduling
from pipeline.processors.descheduling.hot_node_policies import with_hot_nodes
from pipeline.processors.policy.amplification import AMPLIFICATION, node_ratios, ratios_text
from pipeline.processors.policy.config_sections import Section, document
from pipeline.processors.policy.load_configmap import Policy, PolicyProblem
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
from pipeline.sources.object_files import FileObjects, objects_in
from pipeline.sources.policy_file import (
    LARGEST_POLICY_BYTES,
    config_map_in,
    descheduling_in,
    filter_limits,
    has_config_map,
    policy_objects_in,
)
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord

_NOT_IN_FORCE = 3


@click.command(
    cls=Command,
    exit_codes={
        0: "the whole policy is in force",
        1: "failure: the file has no such object, or a cluster-wide section is invalid",
        3: "a part of the policy is not in force",
    },
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--nodes", type=click.Path(path_type=Path),
    help="Also resolve the policy for the nodes in this file, the output of `kubectl get nodes -o "
    "json`; with `nodes,noderesourcetopologies` including CPU normalization.",
)  # fmt: skip
@output_option
@settings_options("extender.cpu_threshold_percent", "extender.memory_threshold_percent")
def command(settings: Settings, file: Path, nodes: Path | None, as_json: bool) -> None:
    """Check the policy in FILE, and resolve it per node.

    FILE, or - for standard input, is the ConfigMap slo-controller-config as kubectl prints it, YAML
    or JSON, a DeschedulerConfiguration or its ConfigMap, or a List with both. The command reports
    every invalid part, and values that contradict each other or the thresholds of the scheduler
    extender. With --nodes it prints the policy of each node: the cluster's values, the first entry
    or pool that selects the node, its annotations and labels; with -o json also the specs of its
    NodeMetric and NodeSLO. It reads neither Kafka nor Kubernetes, and writes nothing.

    \b
    Examples:
      springtide policy slo-controller-config.yaml
      springtide policy koord-descheduler-config.yaml
      kubectl get cm -n koordinator-system koord-descheduler-config -o yaml | springtide policy -
      springtide policy slo-controller-config.yaml --nodes nodes.json -o json | jq '."node-1"'
    """
    name = argument_name(file)
    objects = policy_objects_in(read_argument(file, LARGEST_POLICY_BYTES), name)
    read = descheduling_in(objects, name)
    descheduling, problems = read or (None, ())
    policies = None
    if read is None or has_config_map(objects):
        data = config_map_in(objects, name)
        policies, policy_problems = load_policies(data, None, filter_limits(settings))
        problems = (*policy_problems, *problems)
    refused = [problem for problem in problems if not problem.in_force]
    is_unreadable = read is not None and descheduling is None
    if is_unreadable or any(problem.where in KEYS for problem in refused):
        invalid = [f"{name}: {problem}" for problem in refused]
        _print_warnings(str(problem) for problem in problems if problem.in_force)
        raise InvalidPolicyError(
            "\nerror: ".join([*invalid, *_unreadable_nodes(nodes)]),
            hint="correct it; until then the last valid policy stays in force",
        )
    resolved = [] if nodes is None else list(_resolve_nodes(policies, descheduling, nodes))
    warnings = [str(problem) for problem in problems]
    for node in resolved:
        warnings += [f"node {node.record.node}: {problem}" for problem in node.problems]
        refused += [problem for problem in node.problems if not problem.in_force]
    _print_warnings(warnings)
    if as_json:
        click.echo(json.dumps(_documents(policies, descheduling, resolved, nodes), indent=2))
    if policies is not None and not as_json:
        print_lines(_summary(policies, resolved))
    if descheduling is not None and not as_json:
        print_lines(descheduling_lines(descheduling))
        print_lines(f"node {node.record.node}: {hot_node_text(node.record)}" for node in resolved)
    if refused:
        raise click.exceptions.Exit(_NOT_IN_FORCE)


def _print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {printable(warning)}", err=True)


def _unreadable_nodes(file: Path | None) -> Iterator[str]:
    """The problem of the nodes in the file, if there is one."""
    try:
        if file is not None:
            _nodes_in(_read_argument(file), file)
    except SpringtideError as error:
        yield error.message


class _Node(NamedTuple):
    record: NodeRecord
    problems: tuple[PolicyProblem, ...]
    cpu: CpuInfo | None


def _resolve_nodes(
    policies: Policies | None, descheduling: Descheduling | None, file: Path
) -> Iterator[_Node]:
    """Read the nodes in the file, and resolve the policy for each."""
    data = _read_argument(file)
    objects = _nodes_in(data, file)
    infos = _cpu_infos(data, file)
    for entry in objects.entries.values():
        record = decode_json(NodeRecord, entry.value or b"")
        problems: tuple[PolicyProblem, ...] = ()
        if policies is not None:
            record, problems = with_policy(record, policies)
        record = with_hot_nodes(record, descheduling)
        yield _Node(record, problems, infos.get(record.node))


def _read_argument(file: Path) -> bytes:
    """Once: the file may be a pipe."""
    return read_argument(file, LARGEST_LIST_BYTES)


def _nodes_in(data: bytes, file: Path) -> FileObjects:
    objects = objects_in(data, Path(argument_name(file)), "Node")
    if objects.problems:
        first = objects.problems[0]
        raise InvalidRecordError(
            f"{argument_name(file)}: {first.name}: {first.reason}",
            hint="write the file again with kubectl",
        )
    return objects


def _cpu_infos(data: bytes, file: Path) -> dict[str, CpuInfo]:
    """Read CPU facts of the NodeResourceTopology objects in the file, by node."""
    tree = msgspec.json.decode(data)
    items = tree.get("items") if isinstance(tree, dict) else tree
    infos = {}
    for item in items or []:
        if isinstance(item, dict) and item.get("kind") == "NodeResourceTopology":
            metadata = item.get("metadata") or {}
            name = str(metadata.get("name"))
            try:
                info = read_cpu_info(metadata.get("annotations") or {})
            except InvalidPolicyError as error:
                raise InvalidRecordError(
                    f"{argument_name(file)}: topology {name:.253}: {error.message}"
                ) from error
            if info is not None:
                infos[name] = info
    return infos


# -- as JSON


def _documents(
    policies: Policies | None,
    descheduling: Descheduling | None,
    resolved: Iterable[_Node],
    nodes: Path | None,
) -> dict[str, Any]:
    """Return what is in force for each node, or without nodes for the cluster."""
    if nodes is not None:
        return {node.record.node: _node_document(node, policies) for node in resolved}
    documents = {} if policies is None else {"cluster": _cluster_document(policies)}
    if descheduling is not None:
        documents["descheduler"] = descheduling_document(descheduling)
    return documents


def _cluster_document(policies: Policies) -> dict[str, Any]:
    """Return the cluster-wide values by key."""
    assert policies.colocation is not None
    assert policies.springtide is not None
    strategy = document(policies.colocation.cluster) | document(policies.springtide.cluster)
    others = {
        section.key: document(policy.cluster) for section, policy in _other_sections(policies)
    }
    return {"on": bool(policies.colocation.cluster.enable), "strategy": strategy, **others}


def _node_document(node: _Node, policies: Policies | None) -> dict[str, Any]:
    """Return everything that is in force for a node, with its custom resources."""
    record = node.record
    hot_nodes = {"hotNodes": msgspec.to_builtins(record.hot_nodes)}
    if policies is None:
        return hot_nodes
    normalization = _annotation(lambda: node_ratio(record, node.cpu))
    amplification = _annotation(lambda: ratios_text(node_ratios(record) or {}))
    return {
        "on": record.overcommit is not None,
        "strategy": _strategy(record),
        "nodeMetric": metric_spec(record),
        "nodeSLO": _decode_raw(record.slo),
        "hostApplications": record.host_apps,
        "cpuNormalization": {**_decode_raw(record.cpu_normalization), **normalization},
        "amplification": {**_decode_raw(record.amplification), **amplification},
        **hot_nodes,
    }


def _annotation(value: Callable[[], Any]) -> dict[str, Any]:
    """Compute the value of an annotation, or say why it has none."""
    try:
        return {"annotation": value()}
    except InvalidPolicyError as error:
        return {"annotation": None, "why": error.message}


def _strategy(record: NodeRecord) -> dict[str, Any]:
    return {**(record.colocation or {}), **(record.springtide or {})}


_decode_raw: Final = msgspec.json.Decoder(dict[str, Any]).decode


# -- as text

_OTHER_SECTIONS: Final[tuple[Section[Any], ...]] = (
    NORMALIZATION, AMPLIFICATION, THRESHOLD, QOS, BURST, SYSTEM, HOST_APPLICATIONS,
)  # fmt: skip


def _other_sections(policies: Policies) -> Iterator[tuple[Section[Any], Policy[Any]]]:
    """Pair the sections outside of the strategy with their policies."""
    policies_ = (policies.normalization, policies.amplification, *policies.slo)
    for section, policy in zip(_OTHER_SECTIONS, policies_, strict=True):
        assert policy is not None
        yield section, policy


def _entries(entries: Sequence[object]) -> str:
    return f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'} for selected nodes"


def _summary(policies: Policies, nodes: Iterable[_Node]) -> Iterator[str]:
    """Describe what differs from the defaults, and for each node from the cluster's values."""
    assert policies.colocation is not None
    cluster = _cluster_document(policies)
    state = "on" if cluster["on"] else "off"
    yield f"colocation is {state} for the cluster; {_entries(policies.colocation.entries)}"
    for name, value in cluster["strategy"].items():
        yield f"  {name:34} {json.dumps(value)}"
    for section, policy in _other_sections(policies):
        changes = _differences(document(section.defaults), document(policy.cluster))
        entries = f"; {_entries(policy.entries)}" if policy.entries else ""
        yield f"{section.key}: {changes or 'defaults'}{entries}"
    unselected_node, _ = with_policy(NodeRecord(node="none"), policies)
    for node in nodes:
        record = node.record
        changes = _differences(cluster["strategy"], _strategy(record))
        state = "on" if record.overcommit else "off"
        others = [
            f"{title}: {differences}"
            for title, default, value in (
                ("NodeSLO", unselected_node.slo, record.slo),
                ("CPU normalization", unselected_node.cpu_normalization, record.cpu_normalization),
                ("amplification", unselected_node.amplification, record.amplification),
            )
            if (differences := _differences(_decode_raw(default), _decode_raw(value)))
        ]
        yield "; ".join([f"node {record.node}: {state}, {changes or 'as the cluster'}", *others])


def _differences(default: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """List what `values` changes in `default`, each value by its path."""
    defaults = dict(_leaves(default))
    return ", ".join(
        f"{path} {json.dumps(value)}"
        for path, value in _leaves(values)
        if defaults.get(path) != value
    )


def _leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
