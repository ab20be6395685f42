"""The policy from a file: the ConfigMap `slo-controller-config` as kubectl prints it; and telling
what is wrong with a policy, wherever it came from.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import InvalidPolicyError, UsageError
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.processors.policy.contradictions import FilterLimits
from pipeline.processors.policy.load_configmap import CONFIG_MAP, PolicyProblem
from pipeline.processors.scorers.load_aware import LOAD_AWARE
from pipeline.settings import Settings
from pipeline.sources.scheduler_config import placement_of

log = get_logger(__name__)

PROBLEMS = gauge("policy_problems", "Problems of the policy, by whether it counts.", ["in_force"])


def filter_limits(settings: Settings) -> FilterLimits:
    """What our scheduler extender is set to, which the policy may contradict."""
    placement = placement_of(settings.extender)
    if LOAD_AWARE not in placement.filters:
        return FilterLimits(0.0, 0.0)
    thresholds = placement.load_aware.usage_thresholds
    return FilterLimits(float(thresholds.get("cpu", 0)), float(thresholds.get("memory", 0)))


def tell(problems: Iterable[PolicyProblem]) -> None:
    """Count the problems of the policy as it is now, and log each."""
    found = list(problems)
    for taken in (True, False):
        count = sum(problem.taken is taken for problem in found)
        PROBLEMS.labels(str(taken).lower()).set(count)
    for problem in found:
        log.warning("policy", problem=str(problem))


def read_config_map(file: Path) -> Mapping[str, str]:
    """The data of the ConfigMap in `file`, YAML or JSON, by itself or in a List.

    Raises `UsageError` if the file cannot be read, `InvalidPolicyError` if it has no such object or
    several.
    """
    try:
        trees = list(yaml.safe_load_all(file.read_text()))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint="name a file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise InvalidPolicyError(f"{file} is neither YAML nor JSON: {first:.200}") from error
    found = [one for one in _objects(trees) if _name_of(one) == ("ConfigMap", CONFIG_MAP)]
    if len(found) != 1:
        count = f"{len(found)} ConfigMaps {CONFIG_MAP}, of which one can be in force"
        raise InvalidPolicyError(
            f"{file} has {count if found else f'no ConfigMap {CONFIG_MAP}'}",
            hint=f"kubectl get configmap {CONFIG_MAP} -n koordinator-system -o yaml",
        )
    return data_of(found[0], str(file))


def _objects(trees: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for tree in trees:
        items = tree.get("items", [tree]) if isinstance(tree, dict) else []
        for one in items if isinstance(items, list) else []:
            if isinstance(one, dict):
                yield one


def data_of(config_map: Mapping[str, Any], where: str) -> Mapping[str, str]:
    """The data of a ConfigMap. Raises `InvalidPolicyError` if it is not made of texts."""
    data = config_map.get("data") or {}
    if not isinstance(data, dict) or not all(isinstance(one, str) for one in data.values()):
        raise InvalidPolicyError(
            f"{where}: data of {CONFIG_MAP} is not an object of texts",
            hint="put JSON into it as a text: `colocation-config: |`",
        )
    return data


def _name_of(one: dict[str, Any]) -> tuple[Any, Any]:
    metadata = one.get("metadata")
    return one.get("kind"), metadata.get("name") if isinstance(metadata, dict) else None
