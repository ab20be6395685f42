"""Configuration of the models: entities, profiles and settings.

Usage arrays have two columns, cpu in cores and memory in bytes; requests and allocatable have
millicores and bytes. NaN is unknown. Times are whole milliseconds since the Unix epoch, UTC.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
import numpy as np

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
"""Entities of every node in the order of their rows; pods follow."""
NODE: Final = ENTITIES.index("node")
SYSTEM: Final = ENTITIES.index("system")
FIRST_CLASS: Final = ENTITIES.index(CLASSES[0])
UNKNOWN: Final = ENTITIES.index("unknown")

MAX_USAGE: Final = np.array([1e6, 2.0**60])
"""Largest plausible usage (cores, bytes); larger values are invalid."""


MIN_SAMPLE_WEIGHT: Final = 2.0**-0.5
"""The lightest weight of a sample: the reference is at most half a half-life ahead of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Half-lives and bucket layouts of an entity, each (cpu, memory).

    Raises ValueError for a layout whose epsilon may exceed the weight of a sample: the histogram
    would drop samples that the moments have.
    """

    half_life_seconds: tuple[float, float] = (43_200.0, 86_400.0)
    layouts: tuple[Layout, Layout] = (CPU_LAYOUT, MEMORY_LAYOUT)

    def __post_init__(self) -> None:
        largest = max(layout.epsilon for layout in self.layouts)
        if largest >= MIN_SAMPLE_WEIGHT:
            raise ValueError(f"epsilon is {largest:g}; a sample may weigh {MIN_SAMPLE_WEIGHT:.3f}")

    @property
    def half_life_ms(self) -> tuple[int, int]:
        cpu, memory = self.half_life_seconds
        return round(cpu * 1000), round(memory * 1000)

    @property
    def text(self) -> str:
        """The profile as text, for a fingerprint."""
        return "|".join((*map(str, self.half_life_ms), *(layout.name for layout in self.layouts)))


KOORDINATOR: Final = Profile()
VPA: Final = Profile(
    half_life_seconds=(86_400.0, 86_400.0), layouts=(VPA_CPU_LAYOUT, VPA_MEMORY_LAYOUT)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """How models learn, and which peaks they give.

    `profile` applies to entities whose class (a pod's, or that of a sum) is not in
    `class_profiles`. Profiles, training statistic, coverage, expiration, `drift` and the columns of
    predictors shape what is learned; the rest only what is done with it. `predictors` run, with
    `options` by name. `strategy` applies to windows without one. A peak covers the next
    `horizon_seconds`; one peak of Prod in `accuracy_interval_seconds` is held against what happens.
    """

    profile: Profile = KOORDINATOR
    class_profiles: Mapping[str, Profile] = field(default_factory=dict)
    training_statistic: str = "p90"
    expiration_seconds: float = 1800.0
    minimum_coverage: float = 0.5
    horizon_seconds: float = 86_400.0
    class_horizon_seconds: Mapping[str, float] = field(default_factory=dict)
    accuracy_interval_seconds: float = 3600.0
    predictors: tuple[str, ...] = ("percentile", "nsigma-v1")
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    drift: Literal["off", "flag", "shorten"] = "flag"
    strategy: Strategy = field(default_factory=Strategy)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Every profile in use: the default, then those of classes by class name. The state holds
        their numbers, which must not depend on the order of settings."""
        own = (self.class_profiles[name] for name in sorted(self.class_profiles))
        return tuple(dict.fromkeys((self.profile, *own)))

    def profile_index(self, entity: str) -> int:
        """The number in `profiles` of an entity of `ENTITIES`; a pod has that of its class."""
        return self.profiles.index(self.class_profiles.get(entity, self.profile))

    def entity_horizon_seconds(self, entity: str) -> float:
        """The horizon of an entity of `ENTITIES` in seconds."""
        return self.class_horizon_seconds.get(entity, self.horizon_seconds)

    def prediction_settings(self, predictors: Iterable[str]) -> str:
        """All settings besides a node's strategy that shape the peaks of these predictors, as text.
        After a change, peaks are published again."""
        horizons = [self.entity_horizon_seconds(entity) for entity in ENTITIES]
        parts = (sorted(predictors), self.options, horizons)
        return msgspec.json.encode(parts, enc_hook=repr, order="sorted").decode()

    def fingerprint(self, columns: str) -> str:
        """A hash of all that shapes what is learned, the predictors' `columns` included. State of
        another fingerprint cannot be restored."""
        classes = (f"{n}:{self.class_profiles[n].text}" for n in sorted(self.class_profiles))
        learning = (
            self.training_statistic, str(float(self.minimum_coverage)),
            str(float(self.expiration_seconds)), self.drift, columns,
        )  # fmt: skip
        text = "|".join((self.profile.text, *classes, *learning))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
