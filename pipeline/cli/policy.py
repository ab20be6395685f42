"""`springtide policy`: a `slo-controller-config` checked, and what it is for each node."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from pipeline.cli.options import settings_options
from pipeline.cli.printing import printable, say
from pipeline.errors import InvalidPolicyError, InvalidRecordError, UsageError
from pipeline.processors.policy.colocation import document
from pipeline.processors.policy.effective import Effective, effective
from pipeline.processors.policy.loading import Policy, load
from pipeline.settings import Settings
from pipeline.sources.files import read_objects
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord

_NAME = "slo-controller-config"
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
    loaded = load(_data(file))
    problems = [str(problem) for problem in loaded.problems]
    if loaded.policy is None:
        raise InvalidPolicyError(
            "\n".join([f"{file}: {problems[0]}", *problems[1:]]),
            hint="mend it; until then what was good before stays in force",
        )
    found = {} if nodes is None else dict(_strategies(loaded.policy, nodes))
    refused = [p for p in loaded.problems if not p.taken]
    for node, of in found.items():
        problems += [f"node {node}: {problem}" for problem in of.problems]
        refused += [problem for problem in of.problems if not problem.taken]
    click.echo(
        "".join(f"warning: {line}\n" for line in map(printable, problems)), err=True, nl=False
    )
    if as_json:
        cluster = {"cluster": _shown(loaded.policy.cluster.enable, document(loaded.policy.cluster))}
        shown = {node: _shown(of.is_on, document(of.strategy)) for node, of in found.items()}
        click.echo(json.dumps(shown if nodes is not None else cluster, indent=2))
    else:
        say(_summary(loaded.policy, found))
    if refused:
        raise click.exceptions.Exit(_FOUND)


def _shown(is_on: bool | None, strategy: dict[str, Any]) -> dict[str, Any]:
    return {"on": bool(is_on), "strategy": strategy}


def _summary(policy: Policy, found: Mapping[str, Effective]) -> Iterator[str]:
    """What a person wants to see: on or off, and what of it differs from the defaults."""
    cluster = document(policy.cluster)
    state = "on" if policy.cluster.enable else "off"
    yield f"colocation is {state} for the cluster; {len(policy.entries)} entries for some nodes"
    for name, value in cluster.items():
        yield f"  {name:34} {json.dumps(value)}"
    for node, of in found.items():
        own = {name: v for name, v in document(of.strategy).items() if cluster.get(name) != v}
        said = ", ".join(f"{name} {json.dumps(value)}" for name, value in own.items())
        yield f"node {node}: {'on' if of.is_on else 'off'}, {said or 'as the cluster'}"


def _strategies(policy: Policy, nodes: Path) -> Iterator[tuple[str, Effective]]:
    found = read_objects(nodes, "Node")
    if found.problems:
        first = found.problems[0]
        raise InvalidRecordError(f"{nodes}: {first.name}: {first.reason}", hint="get it anew")
    for entry in found.entries.values():
        record = decode_json(NodeRecord, entry.value or b"")
        yield record.node, effective(policy, record.labels, record.annotations)


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
            if isinstance(one, dict) and _name_of(one) == ("ConfigMap", _NAME):
                data = one.get("data") or {}
                if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()):
                    raise InvalidPolicyError(
                        f"{file}: data of {_NAME} is not an object of texts",
                        hint="put JSON into it as a text: `colocation-config: |`",
                    )
                return data
    raise InvalidPolicyError(
        f"{file} has no ConfigMap {_NAME}",
        hint=f"kubectl get configmap {_NAME} -n koordinator-system -o yaml",
    )


def _name_of(one: dict[str, Any]) -> tuple[Any, Any]:
    metadata = one.get("metadata")
    return one.get("kind"), metadata.get("name") if isinstance(metadata, dict) else None
