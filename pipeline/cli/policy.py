"""`springtide policy`: a `slo-controller-config` checked, and what it is for each node."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from pipeline.cli.options import settings_options
from pipeline.cli.printing import printable, say
from pipeline.errors import InvalidPolicyError, InvalidRecordError, UsageError
from pipeline.processors.policy.colocation import Colocation
from pipeline.processors.policy.in_force import Policies, load_policies, with_policy
from pipeline.processors.policy.loading import CONFIG_MAP, Policy, Problem
from pipeline.processors.policy.sections import document
from pipeline.settings import Settings
from pipeline.sources.files import read_objects
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
    help="Show what it comes to for the nodes in this file (kubectl get nodes -o json).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the strategies as JSON, by node.")
@settings_options()
def command(settings: Settings, file: Path, nodes: Path | None, as_json: bool) -> None:
    """Check the colocation policy in FILE, before or after it is in the cluster.

    FILE is the ConfigMap slo-controller-config as kubectl prints it, YAML or JSON, or a List that
    has it. Says of every part that cannot be used what is wrong with it. With --nodes also what
    each node ends up with: the cluster's values, the first entry of nodeConfigs that selects it,
    its annotation and its ratio labels. Nothing is written, and neither Kafka nor Kubernetes is
    asked.

    \b
    Examples:
      springtide policy slo-controller-config.yaml
      springtide policy slo-controller-config.yaml --nodes nodes.json --json | jq '."node-1"'
    """
    policies, problems = load_policies(_data(file))
    if policies.colocation is None or policies.springtide is None:
        raise InvalidPolicyError(
            "\n".join([f"{file}: {problems[0]}", *map(str, problems[1:])]),
            hint="mend it; until then what was good before stays in force",
        )
    found = {} if nodes is None else dict(_in_force(policies, nodes))
    told = [str(problem) for problem in problems]
    refused = [problem for problem in problems if not problem.taken]
    for node, (_, of_node) in found.items():
        told += [f"node {node}: {problem}" for problem in of_node]
        refused += [problem for problem in of_node if not problem.taken]
    click.echo("".join(f"warning: {line}\n" for line in map(printable, told)), err=True, nl=False)
    cluster = document(policies.colocation.cluster)
    own = document(policies.springtide.cluster)
    if as_json:
        of_cluster = _shown(policies.colocation.cluster.enable, cluster | own)
        shown = {
            node: _shown(of.overcommit is not None, _said(of)) for node, (of, _) in found.items()
        }
        click.echo(json.dumps(shown if nodes is not None else {"cluster": of_cluster}, indent=2))
    else:
        say(_summary(policies.colocation, cluster | own, [of for of, _ in found.values()]))
    if refused:
        raise click.exceptions.Exit(_FOUND)


def _shown(is_on: bool | None, strategy: dict[str, Any]) -> dict[str, Any]:
    return {"on": bool(is_on), "strategy": strategy}


def _said(of: NodeRecord) -> dict[str, Any]:
    """All that is in force for a node, by the names that users write."""
    return {**(of.colocation or {}), **(of.springtide or {})}


def _summary(
    policy: Policy[Colocation], cluster: Mapping[str, Any], nodes: Iterable[NodeRecord]
) -> Iterator[str]:
    """What a person wants to see: on or off, and what of it differs from the cluster's values."""
    state = "on" if policy.cluster.enable else "off"
    yield f"colocation is {state} for the cluster; {len(policy.entries)} entries for some nodes"
    for name, value in cluster.items():
        yield f"  {name:34} {json.dumps(value)}"
    for of in nodes:
        own = {name: v for name, v in _said(of).items() if cluster.get(name) != v}
        said = ", ".join(f"{name} {json.dumps(value)}" for name, value in own.items())
        yield f"node {of.node}: {'on' if of.overcommit else 'off'}, {said or 'as the cluster'}"


def _in_force(
    policies: Policies, nodes: Path
) -> Iterator[tuple[str, tuple[NodeRecord, tuple[Problem, ...]]]]:
    found = read_objects(nodes, "Node")
    if found.problems:
        first = found.problems[0]
        raise InvalidRecordError(f"{nodes}: {first.name}: {first.reason}", hint="get it anew")
    for entry in found.entries.values():
        record = decode_json(NodeRecord, entry.value or b"")
        yield record.node, with_policy(record, policies)


def _data(file: Path) -> Mapping[str, str]:
    """The data of the ConfigMap in the file."""
    try:
        trees = list(yaml.safe_load_all(file.read_text()))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint="name a file") from error
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise InvalidPolicyError(f"{file} is neither YAML nor JSON: {first:.200}") from error
    for tree in trees:
        items = tree.get("items", [tree]) if isinstance(tree, dict) else []
        for one in items if isinstance(items, list) else []:
            if isinstance(one, dict) and _name_of(one) == ("ConfigMap", CONFIG_MAP):
                data = one.get("data") or {}
                if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()):
                    raise InvalidPolicyError(
                        f"{file}: data of {CONFIG_MAP} is not an object of texts",
                        hint="put JSON into it as a text: `colocation-config: |`",
                    )
                return data
    raise InvalidPolicyError(
        f"{file} has no ConfigMap {CONFIG_MAP}",
        hint=f"kubectl get configmap {CONFIG_MAP} -n koordinator-system -o yaml",
    )


def _name_of(one: dict[str, Any]) -> tuple[Any, Any]:
    metadata = one.get("metadata")
    return one.get("kind"), metadata.get("name") if isinstance(metadata, dict) else None
