"""Types of fields that several plugins of a DeschedulerConfiguration have."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes.durations import LONGEST_SECONDS, go_seconds
from pipeline.processors.kubernetes.resource_names import resource_name_problem
from pipeline.processors.policy.selectors import Selector

VERSION: Final = "descheduler/v1alpha2"
MOST_COUNT: Final = 2**31 - 1


def _seconds(value: Any) -> float:
    seconds = go_seconds(value) if isinstance(value, str) else None
    if seconds is None or not 0 <= seconds <= LONGEST_SECONDS:
        raise InvalidPolicyError("is not a duration such as 5m, at most a year")
    return float(seconds)


def _number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError as error:
        raise InvalidPolicyError("is not a number") from error


DURATION: Final = "a duration, as 5m"
Seconds = Annotated[float, Meta(title=DURATION, extra={"read": _seconds})]
"""Written as a Go duration."""
Count = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
PositiveCount = Annotated[int, Meta(ge=1, le=MOST_COUNT)]
Rate = Annotated[float, Meta(gt=0, le=1_000_000, extra={"read": _number})]
Percent = Annotated[float, Meta(ge=0, le=1000)]
PercentByResource = dict[str, Percent]


Problem = tuple[str, str]
"""A key and its problem."""


class CountOrPercent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A count of pods, or a percentage of the pods of a workload."""

    count: int | None = None
    percent: int | None = None


def read_count_or_percent(value: Any) -> CountOrPercent:
    """Read `5` or `"10%"`. Raises InvalidPolicyError."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_COUNT:
        return CountOrPercent(count=value)
    digits = value.removesuffix("%") if isinstance(value, str) and value.endswith("%") else ""
    if digits.isascii() and digits.isdigit() and len(digits) < 10:
        return CountOrPercent(percent=int(digits))
    raise InvalidPolicyError("is neither a whole number from 0 nor a percentage such as 10%")


class Namespaces(msgspec.Struct, frozen=True, kw_only=True):
    """Namespaces whose pods may be evicted: only those, or all but those."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class PodSelector(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that may be evicted; without a selector the entry is dropped."""

    name: str = ""
    selector: Selector | None = None


class PluginArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The keys that the arguments of all plugins have."""

    api_version: str = VERSION
    kind: str = ""

    def problems(self) -> Iterator[Problem]:
        """Values that are valid alone, and not together or in their place."""
        yield from ()

    def warnings(self) -> Iterator[Problem]:
        """Valid values without an effect here."""
        yield from ()


Paused = Annotated[bool, Meta(description="the strategy is off")]
DryRun = Annotated[bool, Meta(description="decide, and evict nothing")]
NodeFit = Annotated[bool, Meta(description="evict a pod only if another node can take it")]
EvictableNamespaces = Annotated[
    Namespaces | None,
    Meta(title="`include` or `exclude`, lists", description="whose pods may be evicted"),
]
NodesSelected = Annotated[
    Selector | None, Meta(title="a label selector", description="the nodes that count")
]
PodSelectors = Annotated[
    tuple[PodSelector, ...],
    Meta(
        title="a list of `name` and `selector`",
        description="a pod may be evicted if any of them selects it; entries without a selector "
        "are dropped",
    ),
]


class StrategyArgs(PluginArgs, frozen=True, kw_only=True, rename="camel"):
    """The keys that all strategies have."""

    paused: Paused = False
    evictable_namespaces: EvictableNamespaces = None
    node_selector: NodesSelected = None
    pod_selectors: PodSelectors = ()


def namespace_problems(key: str, namespaces: Namespaces | None) -> Iterator[Problem]:
    if namespaces is not None and namespaces.include and namespaces.exclude:
        yield key, "has include and exclude, and only one of them may be set"


def resource_problems(key: str, names: Sequence[str] | Mapping[str, Any]) -> Iterator[Problem]:
    """Names that no resource of a node can have."""
    for name in names:
        if problem := resource_name_problem(name):
            yield key, problem


def above(
    low_key: str, low: Mapping[str, float], high_key: str, high: Mapping[str, float]
) -> Iterator[Problem]:
    """Values of `low` above that of the same resource in `high`."""
    for name, percent in low.items():
        if percent > high.get(name, percent):
            text = f"{percent:g} is above {high_key}.{name:.80}, which is {high[name]:g}"
            yield f"{low_key}.{name:.80}", text
