"""Resolve the colocation strategy of a node from the policy and the node's own settings."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from pipeline.processors.policy.colocation_config import COLOCATION, KEYS, Colocation
from pipeline.processors.policy.config_sections import merge
from pipeline.processors.policy.load_configmap import Policy, PolicyProblem, read_annotation

ANNOTATION: Final = "node.koordinator.sh/colocation-strategy"
RATIO_LABELS: Final = {
    "node.koordinator.sh/cpu-reclaim-ratio": "cpu_reclaim_threshold_percent",
    "node.koordinator.sh/memory-reclaim-ratio": "memory_reclaim_threshold_percent",
    "node.koordinator.sh/mid-static-cpu-reserved-ratio": "mid_static_cpu_reserved_percent",
    "node.koordinator.sh/mid-static-memory-reserved-ratio": "mid_static_memory_reserved_percent",
}
_NUMBER: Final = re.compile(r"\+?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)
_LARGEST_PERCENT: Final = 1_000_000


class Effective(NamedTuple):
    """The strategy of a node, and problems of its own settings."""

    strategy: Colocation
    is_on: bool
    problems: tuple[PolicyProblem, ...]


def effective_strategy(
    policy: Policy[Colocation], labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Effective:
    """Merge the cluster's part, the first entry whose selector matches, the node's annotation and
    its ratio labels, each over those before.

    The node is on if both the cluster and the merged strategy are: a node can only switch itself
    off. An own value out of range is ignored; the others count.
    """
    own, problems = read_annotation(COLOCATION, ANNOTATION, annotations.get(ANNOTATION))
    strategy = merge(policy.for_labels(labels), own)
    ratios: dict[str, Any] = {}
    for label, field in RATIO_LABELS.items():
        if label in labels:
            percent = _percent(labels[label])
            if percent is None:
                problems.append(
                    PolicyProblem(f"label {label}", f"{labels[label]!r:.60} is not a ratio")
                )
            else:
                ratios[field] = percent
                warnings = COLOCATION.warnings(COLOCATION.convert({KEYS[field]: percent}))
                problems += [
                    PolicyProblem(f"label {label}", text, in_force=True) for text in warnings
                ]
    strategy = merge(strategy, Colocation(**ratios))
    is_on = bool(policy.cluster.enable) and bool(strategy.enable)
    return Effective(strategy, is_on, tuple(problems))


def _percent(text: str) -> int | None:
    """A ratio as whole percent, cut; None if it is not a number, negative or implausibly large.

    Computed from the written digits: floats, which Koordinator uses, make 28 of 0.29.
    """
    if not _NUMBER.fullmatch(text):
        return None
    percent = Decimal(text) * 100
    return int(percent) if percent <= _LARGEST_PERCENT else None
