"""What the arguments of the other scorers may say: Koordinator's, scheduler-plugins' and ours.

Owes the rest: arguments as they are pasted from a KubeSchedulerConfiguration, every key known or
refused by name, each value in its range.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from pipeline.errors import InvalidPolicyError, InvalidRecordError
from pipeline.processors.kubernetes.resource_names import objection
from pipeline.processors.policy.config_sections import keys_of
from pipeline.processors.scorers.fit_plus import Resource, Strategy
from pipeline.processors.scorers.node_metadata import Kind, Order
from pipeline.processors.scorers.scheduling_hint import MAX_HINT_NODES
from pipeline.topics.resource_amounts import millicores, whole_bytes

Weight = Annotated[int, Meta(ge=1, le=2**31)]


class _Args(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):  # fmt: skip
    """Every key known, none that is not."""


class _Typed(_Args, frozen=True, kw_only=True):
    api_version: str | None = None
    kind: str | None = None


class Weighted(_Args, frozen=True, kw_only=True):
    """A resource by name, and how much it counts."""

    name: str
    weight: Weight = 1


_USUAL = (Weighted(name="cpu"), Weighted(name="memory"))


class _Fitted(_Args, frozen=True, kw_only=True):
    type: Strategy
    weight: Weight = 1


Some = Annotated[tuple[Weighted, ...], Meta(min_length=1)]
"""By nothing at all nothing can be scored."""


class NodeResourcesFitPlusArgs(_Typed, frozen=True, kw_only=True):
    resources: dict[str, _Fitted] = {}

    @property
    def by_name(self) -> dict[str, Resource]:
        return {name: Resource(one.type, one.weight) for name, one in self.resources.items()}


class ScarceResourceAvoidanceArgs(_Typed, frozen=True, kw_only=True):
    resources: tuple[str, ...] = ()


class SchedulingHintArgs(_Typed, frozen=True, kw_only=True):
    max_hint_nodes: Annotated[int, Meta(ge=1, le=5000)] = MAX_HINT_NODES


class NodeMetadataArgs(_Typed, frozen=True, kw_only=True):
    """A number or a time (RFC 3339) in a label or annotation of the node."""

    metadata_key: Annotated[str, Meta(min_length=1)]
    metadata_source: Literal["Label", "Annotation"] = "Label"
    metadata_type: Kind = "Number"
    scoring_strategy: Order = "Highest"


class NodeResourcesAllocatableArgs(_Typed, frozen=True, kw_only=True):
    mode: Literal["Least", "Most"] = "Least"
    resources: Some = (Weighted(name="cpu", weight=1 << 20), Weighted(name="memory", weight=1))


class ResourceLimitsArgs(_Typed, frozen=True, kw_only=True):
    """The limit-aware proposal; `default_limit` is for a pod that has none, of a resource that is
    not in it all that the node has. A number is millicores of cpu, and bytes."""

    resources: Some = _USUAL
    default_limit: dict[str, Annotated[int, Meta(ge=0)] | str] = {}

    @property
    def default_limits(self) -> dict[str, int]:
        """In millicores and bytes. Raises InvalidRecordError for what is no quantity."""
        return {
            name: said
            if isinstance(said, int)
            else millicores(said)
            if name == "cpu"
            else whole_bytes(said)
            for name, said in self.default_limit.items()
        }


class PredictedHeadroomArgs(_Typed, frozen=True, kw_only=True):
    """Ours: room under the predicted peak, which there is of cpu and memory."""

    resources: Some = _USUAL


class _Power(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    k0: float
    k1: float
    k2: float


class PeaksArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Upstream's keys are the names of its Go fields; the usual form is taken, too."""

    api_version: str | None = msgspec.field(name="apiVersion", default=None)
    kind: str | None = None
    watcher_address: str | None = msgspec.field(name="watcherAddress", default=None)
    node_power_model: dict[str, _Power] = msgspec.field(name="nodePowerModel", default_factory=dict)


Args = TypeVar("Args", bound=msgspec.Struct)


def read_args(tree: Mapping[str, Any], kind: type[Args]) -> Args:
    """The arguments in an object. Raises InvalidPolicyError that names what is unknown, of another
    type or out of its range."""
    if kind is PeaksArgs:
        tree = {name[:1].lower() + name[1:]: value for name, value in tree.items()}
    try:
        args = msgspec.convert(tree, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise InvalidPolicyError(f"{kind.__name__}: {error}") from error
    for key in ("resources", "default_limit"):
        for one in getattr(args, key, ()):
            name = one.name if isinstance(one, Weighted) else one
            wrong = objection(name)
            if isinstance(args, PredictedHeadroomArgs) and name not in ("cpu", "memory"):
                wrong = f"of {name!r:.80} no peak is predicted"
            if wrong:
                raise InvalidPolicyError(f"{kind.__name__}: {keys_of(kind)[key]}: {wrong}")
    if isinstance(args, ResourceLimitsArgs):
        try:
            least = min(args.default_limits.values(), default=0)
        except InvalidRecordError as error:
            raise InvalidPolicyError(f"{kind.__name__}: defaultLimit: {error.message}") from error
        if least < 0:
            raise InvalidPolicyError(f"{kind.__name__}: defaultLimit: an amount is below 0")
    return args
