"""Read the policy from a file with the ConfigMap `slo-controller-config`, as kubectl prints it, and
a DeschedulerConfiguration beside it.

Also reports the problems of a policy from any source.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pipeline.errors import InvalidPolicyError
from pipeline.input_files import YAML_ERRORS, items_of, read_file, yaml_documents, yaml_problem
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.processors.descheduling.descheduler_config import (
    CONFIG_MAP_KEY,
    KIND,
    SIGS_KIND,
    Read,
    load_descheduling,
    read_configuration,
    read_tree,
)
from pipeline.processors.policy.contradictions import FilterLimits
from pipeline.processors.policy.load_configmap import CONFIG_MAP, PolicyProblem
from pipeline.processors.scorers.load_aware import LOAD_AWARE
from pipeline.settings import Settings
from pipeline.sources.scheduler_config import load_placement

log = get_logger(__name__)

PROBLEMS = gauge(
    "policy_problems", "Problems of the policy, by whether the value is in force.", ["in_force"]
)

_CONFIG_MAP: Final = ("ConfigMap", CONFIG_MAP)
LARGEST_POLICY_BYTES: Final = 4 * 2**20
"""Two ConfigMaps as kubectl prints them, each below the megabyte of the API server."""
_MOST_NAMED: Final = 3
_SIGS: Final = re.compile(rf"""^\s*["']?kind["']?\s*:\s*["']?{SIGS_KIND}\b""", re.MULTILINE)


def filter_limits(settings: Settings) -> FilterLimits:
    """Return the usage thresholds of the extender, which the policy may contradict, in percent."""
    placement = load_placement(settings.extender)
    if LOAD_AWARE not in placement.filters:
        return FilterLimits(0.0, 0.0)
    thresholds = placement.load_aware.usage_thresholds
    return FilterLimits(float(thresholds.get("cpu", 0)), float(thresholds.get("memory", 0)))


def report_problems(problems: Iterable[PolicyProblem]) -> None:
    """Set the metric to the present problems of the policy, and log each."""
    present = list(problems)
    for in_force in (True, False):
        count = sum(problem.in_force is in_force for problem in present)
        PROBLEMS.labels(str(in_force).lower()).set(count)
    for problem in present:
        log.warning("policy problem", problem=str(problem))


def read_config_map(file: Path) -> Mapping[str, str]:
    """Return the data of the ConfigMap in `file`, which is YAML or JSON with an object or a List.

    Raises `UsageError` if the file cannot be read, `InvalidPolicyError` unless it has exactly one
    such ConfigMap.
    """
    return config_map_in(policy_objects(file), file)


def policy_objects(file: Path) -> list[Any]:
    """Return the objects in a file. Raises `UsageError` if it cannot be read, `InvalidPolicyError`
    if it is not YAML."""
    return policy_objects_in(read_file(file, LARGEST_POLICY_BYTES), file)


def policy_objects_in(text: bytes, file: Path | str) -> list[Any]:
    """Return the objects in the text of a file. Raises `InvalidPolicyError` if it is not YAML."""
    try:
        trees = yaml_documents(text)
    except YAML_ERRORS as error:
        raise InvalidPolicyError(
            f"{file} is neither YAML nor JSON: {yaml_problem(error):.200}",
            hint="correct the file, or write it again with kubectl",
        ) from error
    return [item for tree in trees for item in items_of(tree)]


def has_config_map(objects: Iterable[Any]) -> bool:
    """Return whether the ConfigMap `slo-controller-config` is among the objects of a file."""
    return any(_kind_and_name(item) == _CONFIG_MAP for item in objects)


def config_map_in(objects: Collection[Any], file: Path | str) -> Mapping[str, str]:
    """Return the data of the ConfigMap `slo-controller-config` among the objects of a file. Raises
    `InvalidPolicyError` unless there is exactly one."""
    config_maps = [item for item in objects if _kind_and_name(item) == _CONFIG_MAP]
    if len(config_maps) != 1:
        count = f"{len(config_maps)} ConfigMaps {CONFIG_MAP}; keep one"
        none = f"no ConfigMap {CONFIG_MAP}: {contents_text(objects)}"
        raise InvalidPolicyError(
            f"{file} has {count if config_maps else none}",
            hint=f"give it as `kubectl get configmap {CONFIG_MAP} -n koordinator-system -o yaml` "
            f"prints it, or a {KIND}",
        )
    return config_map_data(config_maps[0], str(file))


def contents_text(objects: Iterable[Any]) -> str:
    """What a file has in place of the object that was looked for, such as `it is empty`."""
    names = list(dict.fromkeys(_object_text(item) for item in objects if item is not None))
    if not names:
        return "it is empty"
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"it has {', '.join(names[:_MOST_NAMED])}{more}"


def _object_text(tree: Any) -> str:
    if not isinstance(tree, dict):
        return "text that is no object"
    kind, name = _kind_and_name(tree)
    if kind is None:
        return "an object without kind"
    return f"{kind!s:.63} {name:.253}" if isinstance(name, str) else f"{kind!s:.63}"


def descheduling_in(objects: Iterable[Any], file: Path | str) -> Read | None:
    """Read the DeschedulerConfiguration among the objects of a file: the object, or its ConfigMap
    as kubectl prints it. None if there is none. A DeschedulerPolicy, of another project, is read
    as an invalid one. Raises `InvalidPolicyError` if there are several."""
    found = [item for item in objects if _is_descheduling(item)]
    if len(found) > 1:
        raise InvalidPolicyError(
            f"{file} has {len(found)} objects of kind {KIND}, or ConfigMaps with one",
            hint="keep one",
        )
    if not found:
        return None
    if found[0].get("kind") != "ConfigMap":
        return read_tree(found[0])
    data = found[0].get("data") or {}
    if (foreign := _sigs_policy(data)) is not None:
        return read_configuration(foreign)
    return load_descheduling(data if isinstance(data, dict) else {CONFIG_MAP_KEY: data})


def _is_descheduling(tree: Any) -> bool:
    kind, name = _kind_and_name(tree)
    if kind != "ConfigMap":
        return kind in (KIND, SIGS_KIND)
    data = tree.get("data")
    is_own = name == CONFIG_MAP_KEY or (isinstance(data, dict) and CONFIG_MAP_KEY in data)
    return is_own or _sigs_policy(data) is not None


def _sigs_policy(data: Any) -> str | None:
    """The DeschedulerPolicy in the data of a ConfigMap without a key of ours; None if there is
    none."""
    if not isinstance(data, dict) or CONFIG_MAP_KEY in data:
        return None
    return next((v for v in data.values() if isinstance(v, str) and _SIGS.search(v)), None)


def config_map_data(config_map: Mapping[str, Any], where: str) -> Mapping[str, str]:
    """Return the data of a ConfigMap. Raises `InvalidPolicyError` if a value is not a string."""
    data = config_map.get("data") or {}
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise InvalidPolicyError(
            f"{where}: data of {CONFIG_MAP} is not an object of strings",
            hint="write JSON as a string: `colocation-config: |`",
        )
    return data


def _kind_and_name(tree: Any) -> tuple[Any, Any]:
    tree = tree if isinstance(tree, dict) else {}
    metadata = tree.get("metadata")
    return tree.get("kind"), metadata.get("name") if isinstance(metadata, dict) else None
