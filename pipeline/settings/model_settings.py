"""Settings of what is predicted."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from pipeline.settings.base import Name, Section

CLASSES: Final = ("prod", "mid", "batch", "free", "none", "unknown")
"""Classes by code: the index is what a window's `pod_class` holds as dictionary index."""


class HalfLifeSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """After which time an observation counts half."""

    cpu: Annotated[
        Annotated[float, Meta(ge=1, le=31_536_000)] | None,
        Meta(description="Half-life of the CPU models; null: that of model.histogram."),
    ] = None
    memory: Annotated[
        Annotated[float, Meta(ge=1, le=31_536_000)] | None,
        Meta(description="Half-life of the memory models; null: that of model.histogram."),
    ] = None


class BucketSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Buckets of one resource's histograms, in cores or bytes."""

    first: Annotated[
        Annotated[float, Meta(ge=0.001, le=1e18)] | None,
        Meta(description="Size of the first bucket; null: the preset's."),
    ] = None
    ratio: Annotated[
        Annotated[float, Meta(gt=1, le=1000)] | None,
        Meta(description="How much larger each bucket is than the one before; null: the preset's."),
    ] = None
    max: Annotated[
        Annotated[float, Meta(ge=0.001, le=1e18)] | None,
        Meta(description="Where the last bucket begins; null: the preset's."),
    ] = None
    # The first sample may weigh little more than 0.7, and must not vanish.
    epsilon: Annotated[
        Annotated[float, Meta(gt=0, le=0.7)] | None,
        Meta(description="Weights below this vanish; null: the preset's."),
    ] = None


class HistogramSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How usage is sorted into buckets."""

    preset: Annotated[
        Literal["koordinator", "vpa"],
        Meta(
            description="Buckets and half-lives of Koordinator (from 0.025 cores and 5 MiB, 12 h "
            "and 24 h) or of the Vertical Pod Autoscaler (from 0.01 cores and 10 MB, 24 h)."
        ),
    ] = "koordinator"
    cpu: BucketSettings = BucketSettings()
    memory: BucketSettings = BucketSettings()


class ClassHistogramSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is different in how a class's usage is sorted into buckets."""

    preset: Literal["koordinator", "vpa"] | None = None
    cpu: BucketSettings = BucketSettings()
    memory: BucketSettings = BucketSettings()


class ClassSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is different for one class; what is not named is as for all."""

    histogram: ClassHistogramSettings | None = None
    half_life_seconds: HalfLifeSettings | None = None
    horizon_seconds: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None


_USUAL: Final = "percentile"
"""The predictor that decides where nobody says which."""


class ModelSettings(Section, frozen=True, kw_only=True):
    """What is predicted from the windows."""

    cold_start_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=31_536_000,
            description="A pod younger than this is cold: its request stands in for its peak.",
        ),
    ] = 86_400.0
    cold_start_samples: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="A pod with fewer windows learned than this is cold, too, however old it "
            "is: after a loss of state nobody is trusted for one sample.",
        ),
    ] = 10
    safety_margin_percent: Annotated[
        float, Meta(ge=0, le=1000, description="Added on top of every predicted peak.")
    ] = 10.0
    predictors: Annotated[
        tuple[Name, ...],
        Meta(
            min_length=1,
            title="a list of names, at least one",
            description="Predictors that run side by side and are published; `springtide model "
            "predictors` lists those that are installed.",
        ),
    ] = ("percentile", "nsigma-v1")
    predictor: Annotated[
        Name,
        Meta(
            description="The one of them that decides what Prod leaves unused, where a node's "
            "strategy does not name another."
        ),
    ] = _USUAL
    predictor_options: Annotated[
        dict[str, dict[str, Any]],
        Meta(
            description="Options by predictor, such as {percentile: {cpu: 0.99}}; "
            "docs/explanation/models.md "
            "has them all."
        ),
    ] = field(default_factory=dict)
    histogram: HistogramSettings = HistogramSettings()
    half_life_seconds: HalfLifeSettings = HalfLifeSettings()
    classes: Annotated[
        dict[str, ClassSettings],
        Meta(
            description="What is different for pods of a class and for the class itself, by class "
            "(prod, mid, batch, free, none, unknown): histogram, half_life_seconds and "
            "horizon_seconds, each as above; what is not named in them is the model's."
        ),
    ] = field(default_factory=dict)
    horizon_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=31_536_000,
            description="For how long a predicted peak is to hold; what it means is each "
            "predictor's, docs/explanation/models.md.",
        ),
    ] = 86_400.0
    training_statistic: Annotated[
        Literal["avg", "p90", "p95", "max", "last"],
        Meta(description="Which statistic of a window the models learn from."),
    ] = "p90"
    memory_collect_policy: Annotated[
        Literal["usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache"],
        Meta(
            description="Which of the three measured memory figures counts as memory usage; where "
            "a kernel does not give it, usageWithoutPageCache."
        ),
    ] = "usageWithoutPageCache"
    drift: Annotated[
        Literal["off", "flag", "shorten"],
        Meta(
            description="What a change in the level of a node's, its system's or a class's usage "
            "does: nothing, it is told with the prediction, or its models also count what was "
            "before a sixteenth."
        ),
    ] = "flag"
    expiration_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=31_536_000,
            description="A pod's model is dropped this long (event time) after the last window "
            "that listed it, with its usage or without.",
        ),
    ] = 1800.0
    nsigma_multiplier: Annotated[
        float,
        Meta(ge=0, le=100, description="Deviations above the mean that N-sigma calls the peak."),
    ] = 3.0
    resource_diff_threshold_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=1000,
            description="A prediction is published at once when a peak has risen, or what Prod "
            "leaves unused has fallen, by more than this share of what was last published.",
        ),
    ] = 5.0
    report_interval_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=31_536_000,
            description="A peak that has fallen by more than that share, or a rise of what Prod "
            "leaves unused, is published once it has lasted this long (event time).",
        ),
    ] = 60.0
    force_update_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=31_536_000,
            description="A prediction is published after this time (event time) even if nothing "
            "has moved.",
        ),
    ] = 600.0
    minimum_coverage: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="A window with a smaller share of its readings trains nothing.",
        ),
    ] = 0.5

    def problems(self) -> Mapping[str, str]:
        found = {}
        if self.predictor not in self.predictors and self.predictor == _USUAL:
            # Who says which ones run has not said that another decides.
            found["predictors"] = (
                f"a list with {self.predictor}, which decides, or model.predictor set to one of it"
            )
        elif self.predictor not in self.predictors:
            found["predictor"] = f"one of model.predictors ({', '.join(self.predictors)})"
        if unknown := sorted(set(self.classes) - set(CLASSES)):
            found["classes"] = f"only the classes {', '.join(CLASSES)}, not {unknown[0]!r:.40}"
        return found
