"""What the model bank reads and answers: settings, one window of one node, the outcome of it.

Owes the rest: plain values. Usage arrays have two columns, cpu in cores and memory in bytes;
requests and allocatable, as Kubernetes counts them, cpu in millicores and memory in bytes. NaN is
unknown. Times are whole milliseconds since the Unix epoch, UTC.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.histogram import (
    CPU_LAYOUT,
    MEMORY_LAYOUT,
    VPA_CPU_LAYOUT,
    VPA_MEMORY_LAYOUT,
    Layout,
)
from pipeline.topics.nodes import Strategy

RESOURCES: Final = ("cpu", "memory")

ENTITIES: Final = ("node", "system", *CLASSES)
"""Entities that every node has, in the order of their rows; its pods come after them."""
NODE: Final = ENTITIES.index("node")
SYSTEM: Final = ENTITIES.index("system")
FIRST_CLASS: Final = ENTITIES.index(CLASSES[0])
UNKNOWN: Final = ENTITIES.index("unknown")

PLAUSIBLE: Final = np.array([1e6, 2.0**60])
"""Largest usage that is believed (cores, bytes); what is above is a bad value, not a sample."""


LIGHTEST_SAMPLE: Final = 2.0**-0.5
"""What a sample may weigh: the reference is then at most half a half-life ahead of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How an entity remembers: half-lives and bucket layouts, each (cpu, memory).

    Raises ValueError for a layout whose epsilon may be more than a sample weighs: the histogram
    would lack what the moments have.
    """

    half_life_seconds: tuple[float, float] = (43_200.0, 86_400.0)
    layouts: tuple[Layout, Layout] = (CPU_LAYOUT, MEMORY_LAYOUT)

    def __post_init__(self) -> None:
        largest = max(layout.epsilon for layout in self.layouts)
        if largest >= LIGHTEST_SAMPLE:
            raise ValueError(f"epsilon is {largest:g}; a sample may weigh {LIGHTEST_SAMPLE:.3f}")

    @property
    def half_life_ms(self) -> tuple[int, int]:
        cpu, memory = self.half_life_seconds
        return round(cpu * 1000), round(memory * 1000)

    @property
    def text(self) -> str:
        """All of it, for a fingerprint."""
        return "|".join((*map(str, self.half_life_ms), *(layout.name for layout in self.layouts)))


KOORDINATOR: Final = Profile()
VPA: Final = Profile(
    half_life_seconds=(86_400.0, 86_400.0), layouts=(VPA_CPU_LAYOUT, VPA_MEMORY_LAYOUT)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """How models learn and what peaks they give.

    `profile` is that of every entity whose class is not in `class_profiles` (a pod's class, or the
    class of which an entity is the sum). Profiles, training statistic, memory policy, coverage,
    expiration, what a change of level does (`drift`) and what the predictors keep shape what is
    learned; the rest only changes what is done with it. `memory_collect_policy` is the figure that
    those who make the windows take for memory. `predictors` are those that run, by name, with
    `options` for each; margin, cold start, multiplier, the deciding predictor, the threshold and
    the intervals of reports are for windows that carry no strategy. A pod is cold until it is older
    than the cold start and has `cold_start_samples`. `horizon_seconds` says for how long a peak is
    to hold; when peaks are due to be published, `reporting` does.
    """

    profile: Profile = KOORDINATOR
    class_profiles: Mapping[str, Profile] = field(default_factory=dict)
    cold_start_seconds: float = 86_400.0
    cold_start_samples: int = 10
    safety_margin_percent: float = 10.0
    training_statistic: str = "p90"
    memory_collect_policy: str = "usageWithoutPageCache"
    expiration_seconds: float = 1800.0
    nsigma_multiplier: float = 3.0
    minimum_coverage: float = 0.5
    horizon_seconds: float = 86_400.0
    class_horizon_seconds: Mapping[str, float] = field(default_factory=dict)
    predictors: tuple[str, ...] = ("percentile", "nsigma-v1")
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    predictor: str = "percentile"
    drift: Literal["off", "flag", "shorten"] = "flag"
    resource_diff_threshold_percent: float = 5.0
    report_interval_seconds: float = 60.0
    force_update_seconds: float = 600.0

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Every profile in use: the default one, then those of classes by the classes' names, for
        the state holds their numbers and knows nothing of the order in which they were set."""
        own = (self.class_profiles[name] for name in sorted(self.class_profiles))
        return tuple(dict.fromkeys((self.profile, *own)))

    def profile_of(self, entity: str) -> int:
        """The number in `profiles` of an entity of `ENTITIES`, a pod being of its class."""
        return self.profiles.index(self.class_profiles.get(entity, self.profile))

    def horizon_of(self, entity: str) -> float:
        """Seconds for which a peak of an entity of `ENTITIES` is to hold."""
        return self.class_horizon_seconds.get(entity, self.horizon_seconds)

    @property
    def strategy(self) -> Strategy:
        """The strategy of a node whose windows carry none."""
        return Strategy(
            safety_margin_percent=self.safety_margin_percent,
            cold_start_seconds=self.cold_start_seconds,
            cold_start_samples=self.cold_start_samples,
            nsigma_multiplier=self.nsigma_multiplier,
            predictor=self.predictor,
            resource_diff_threshold_percent=self.resource_diff_threshold_percent,
            report_interval_seconds=self.report_interval_seconds,
            force_update_seconds=self.force_update_seconds,
        )

    def answering(self, predictors: Iterable[str]) -> str:
        """Names all that shapes what these predictors answer from what was learned, beside the
        strategy of a node: when it changes, what was last told stands no more."""
        horizons = [self.horizon_of(entity) for entity in ENTITIES]
        said = (sorted(predictors), self.options, horizons)
        return msgspec.json.encode(said, enc_hook=repr, order="sorted").decode()

    def fingerprint(self, columns: str) -> str:
        """Names all that shapes what is learned, `columns` being what the predictors keep; state of
        another fingerprint cannot be taken over."""
        classes = (f"{n}:{self.class_profiles[n].text}" for n in sorted(self.class_profiles))
        learning = (
            self.training_statistic, self.memory_collect_policy, str(float(self.minimum_coverage)),
            str(float(self.expiration_seconds)), self.drift, columns,
        )  # fmt: skip
        text = "|".join((self.profile.text, *classes, *learning))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(slots=True, kw_only=True)
class NodeWindow:
    """One window of one node, pods in any order; arrays are not written to.

    `pods` is the training statistic of each pod, `node` and `host_apps` that of the node and of
    the sum of host applications (zeros where there are none). `system_usage` is that of the system
    remainder where it was measured; None leaves it to the bank: node - pods - host applications.
    `pod_coverages` are the shares of the window in which each pod was seen; None is as long as the
    node. `pod_ages` are seconds since creation; `pod_active` is False for pods that are being
    deleted or have ended, `pod_ended` True for the latter; None is none of them. `points` are what
    was measured of the node itself, (m, 3): seconds after the start, cores, bytes. The exporter's
    `epoch` and the `machine_id` tell two exporters under one node name apart. `strategy` is the one
    in force; None is that of the bank's settings.
    """

    node: str
    machine_id: str
    epoch: int
    start_ms: int
    end_ms: int
    coverage: float
    node_usage: FloatArray
    host_apps: FloatArray = field(default_factory=lambda: np.zeros(2))
    system_usage: FloatArray | None = None
    points: FloatArray = field(default_factory=lambda: np.zeros((0, 3)))
    allocatable: FloatArray = field(default_factory=lambda: np.full(2, np.nan))
    strategy: Strategy | None = None
    pod_uids: Sequence[str] = ()
    pod_classes: npt.NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    pods: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    pod_coverages: FloatArray | None = None
    requests: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    pod_ages: FloatArray = field(default_factory=lambda: np.zeros(0))
    pod_active: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    pod_ended: npt.NDArray[np.bool_] | None = None


Status = Literal["applied", "duplicate", "late", "second_exporter"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a window.

    `trained` is False where the coverage was too low. `gap` counts the windows missing before
    this one. `restarted` says that another machine took the node's name, so that its node, system
    and class models began anew. `expired` are the pods whose models were dropped.
    """

    node: str
    end_ms: int
    status: Status
    trained: bool = False
    gap: int = 0
    restarted: bool = False
    expired: tuple[str, ...] = ()


def rounds(nodes: Iterable[str]) -> list[list[int]]:
    """Positions in `nodes`, the nodes of some windows in their order, grouped so that no node is
    twice in a group and each node's windows keep their order from group to group."""
    found: list[list[int]] = []
    turns: dict[str, int] = {}
    for position, node in enumerate(nodes):
        turn = turns.get(node, 0)
        turns[node] = turn + 1
        if turn == len(found):
            found.append([])
        found[turn].append(position)
    return found
