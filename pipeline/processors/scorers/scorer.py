"""The declaration of a scorer, and the interfaces of its inputs: candidate nodes and the pod.

A scorer is one value of `Scorer`, named `SCORER` in a module of this package or named by an entry
point of the group `springtide.scorers`. Its function gets columns and returns whole scores.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from pipeline.errors import InvalidPolicyError
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.kubernetes.resource_names import resource_name_problem
from pipeline.topics.pods import CountedPod, PodRecord
from pipeline.topics.resource_amounts import by_name

Array = TypeVar("Array", bound=np.ndarray[Any, Any])
PodAmount = Callable[[CountedPod | PodRecord], int]
"""A whole amount of a pod, which the table sums per node."""

MetadataSource = Literal["Label", "Annotation"]

USAGE_EXPIRES_SECONDS: Final = 300.0
"""Age from which usage is ignored; scheduler-plugins' KEP-61: use windows up to 5 minutes old."""

Weight = Annotated[int, Meta(ge=1, le=2**31)]


class Texts(NamedTuple):
    """Texts of nodes: `codes` (nodes,) are indexes into `texts`, which may have more texts than
    occur; None: a node has no text."""

    codes: npt.NDArray[np.intp]
    texts: Sequence[str | None]


class NodesView(Protocol):
    """The nodes of a question at one moment; arrays are (nodes,), in the order of `names`."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def now(self) -> float: ...

    def __len__(self) -> int: ...

    def allocatable(self, resource: str, kind: str = "allocatable") -> IntArray:
        """Allocatable of a resource in whole units, 0 if a node has nothing of it; `kind` may also
        be `capacity`, or `raw`: before amplification."""

    @property
    def scalars(self) -> tuple[str, ...]:
        """The resources other than cpu and memory that any node has."""

    def column(self, name: str) -> FloatArray:
        """A column of the state table, NaN is unknown. Raises KeyError for an unknown name."""

    def usage(self, column: str, resources: Sequence[str]) -> FloatArray:
        """Usage (nodes, resources) in millicores, bytes and bytes a second, NaN is unknown.
        `column` is a prefix of columns: `usage`, `usage_mean_15m`, `peak`, `prod_usage`, ..."""

    def has_usage(self, column: str, resources: Sequence[str]) -> BoolArray:
        """Where usage of any of the resources is known."""

    def is_fresh(self, expiration_seconds: float) -> BoolArray:
        """Where usage is younger than this, and where a node is new."""

    def is_new(self) -> BoolArray:
        """Where a node never reported and all of its pods are young: it uses nothing yet."""

    def counted(self, name: str) -> IntArray:
        """Sum of an amount over the pods of each node, pods on their way included. Names:
        `request:`, `limit:`, `bound:` (the larger of both) and `estimate:` with a resource, and
        names that the scorer declares. Raises KeyError for an undeclared amount."""

    def in_flight_usage(self, *, prod: bool = False) -> IntArray:
        """Usage that pods in flight add, (nodes, resources of LoadAwareScheduling)."""

    def unreported_usage(self) -> IntArray:
        """Estimates of pods that the last window does not have, (nodes, resources of
        LoadAwareScheduling)."""

    def unmeasured(self) -> IntArray:
        """Millicores of pods that the average usage does not include yet."""

    def unseen(self) -> IntArray:
        """Millicores of pods that started after the last window began."""

    def metadata(self, source: MetadataSource, key: str) -> Texts:
        """A label or an annotation of each node."""

    def by_name(self, values: Mapping[str, Any], fields: Sequence[str]) -> FloatArray:
        """Fields of the value of each node, (fields, nodes), from `values` by name; NaN for a node
        without a value. `values` must not change: results are cached for it."""

    def remembered(
        self, name: str, inputs: FloatArray, compute: Callable[[FloatArray], FloatArray]
    ) -> FloatArray:
        """`compute(inputs)`, (nodes,), computed only for nodes whose `inputs` (n, nodes) are not
        those of the last question under this name. For functions that take a microsecond a node,
        and whose result for a node depends on its own inputs alone."""

    def cached(self, name: str, compute: Callable[[], Array]) -> Array:
        """Cache an array (nodes, ..) under a name for the rest of the question."""


class PodDemand(NamedTuple):
    """The pod of a question, and its amounts by the names of `NodesView.counted`."""

    pod: PodRecord
    counted: dict[str, int]

    @property
    def is_prod(self) -> bool:
        return self.pod.pod_class == "prod"

    @property
    def requests(self) -> dict[str, int]:
        """Requests by resource name, cpu in millicores."""
        return by_name(self.pod.requests, self.pod.scalars)

    def amounts(self, kind: str, resources: Sequence[str]) -> IntArray:
        """Amounts of one kind, such as `estimate`, (resources,)."""
        return np.array([self.counted[f"{kind}:{name}"] for name in resources], np.int64)


class Packing(NamedTuple):
    """How TargetLoadPacking predicts the cpu of a container."""

    multiplier: float = 1.5
    default_millicores: int = 1000
    use_limits: bool = True


class Counts(NamedTuple):
    """The amounts that the table sums over the pods of each node: requests and limits of
    `resources`, and `amounts` by name. Rename an amount when its function changes: saved tables
    identify it by name."""

    resources: tuple[str, ...] = ()
    amounts: Mapping[str, PodAmount] = {}
    packing: Packing | None = None


class ScorerArgs(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):  # fmt: skip
    """Arguments of a scorer, a field each; unknown keys are refused."""

    api_version: str | None = None
    kind: str | None = None


class WeightedResource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    weight: Weight = 1


WeightedResources = Annotated[tuple[WeightedResource, ...], Meta(min_length=1)]
CPU_AND_MEMORY: Final = (WeightedResource(name="cpu"), WeightedResource(name="memory"))

Args = TypeVar("Args", bound=msgspec.Struct)
Tree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Scorer(Generic[Args]):
    """A scoring plugin.

    `name` is its name in a KubeSchedulerConfiguration, `source` the project that it comes from and
    `text` its row in docs/reference/extender.md. `args` is the type of its arguments; `defaults`
    completes the user's arguments, `problems` names refused values, `notes` are messages for the
    user (from the arguments as written and as completed).

    `score` returns int64 scores (nodes,) from 0 to 100, 0 where it knows nothing. If
    `knows` is False for all nodes of a question, the other plugins decide alone. A scorer that
    uses usage sets the largest age of usage in `expiration_seconds`; if usage of all nodes is
    older, nodes are packed by requests instead. None: it does not use usage.
    """

    name: str
    source: str
    text: str
    args: type[Args]
    score: Callable[[NodesView, PodDemand, Args], IntArray]
    defaults: Callable[[Args], Args] = lambda args: args
    problems: Callable[[Args], Iterator[str]] = lambda args: iter(())
    notes: Callable[[Tree, Args], Iterator[str]] = lambda tree, args: iter(())
    counts: Callable[[Args], Counts] = lambda args: Counts()
    expiration_seconds: Callable[[Args], float | None] = lambda args: None
    knows: Callable[[NodesView, Args], bool] = lambda nodes, args: True
    keys: Callable[[Tree], Tree] = lambda tree: tree
    """Renames the keys of arguments to those of `args`."""

    def read(self, tree: Tree) -> Args:
        """The arguments in `tree`, complete. Raises InvalidPolicyError that names the key."""
        args = self.stated(tree)
        wrong = next(self.problems(args), None)
        if wrong is not None:
            raise InvalidPolicyError(f"{self.name}Args: {wrong}")
        return self.defaults(args)

    def stated(self, tree: Tree) -> Args:
        """The arguments in `tree` as they are. Raises InvalidPolicyError."""
        try:
            return msgspec.convert(self.keys(tree), self.args)
        except (msgspec.ValidationError, OverflowError) as error:
            raise InvalidPolicyError(f"{self.name}Args: {error}") from error


def usage_expires(_args: Any) -> float:
    """`expiration_seconds` of scorers that follow KEP-61."""
    return USAGE_EXPIRES_SECONDS


def unknown_resources(key: str, names: Sequence[str]) -> Iterator[str]:
    """Problems with names that no resource of a node can have."""
    yield from (f"{key}: {problem}" for name in names if (problem := resource_name_problem(name)))


def resource_problems(args: Any) -> Iterator[str]:
    """`problems` of arguments with `resources`, names or weighted."""
    yield from unknown_resources("resources", [getattr(r, "name", r) for r in args.resources])
