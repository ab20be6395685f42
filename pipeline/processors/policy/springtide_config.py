"""The keys of `springtide-config`: Springtide's own part of the policy.

They set the deciding predictor and its margins, the formula of Mid, and the buffer. Entries for
some nodes and a node's own annotation work as in `colocation-config`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from pipeline.processors.policy.config_sections import Section, out_of_range, unknown_words
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.topics.overcommit_policy import MID_FORMULAS

KEY: Final = "springtide-config"


class SpringtideConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """The settings of the cluster, of an entry of `nodeConfigs`, or of a node's annotation. The
    worker's settings hold for predictor and margins that are not set."""

    predictor: str | None = None
    safety_margin_percent: float | None = None
    cold_start_samples: int | None = None
    nsigma_multiplier: float | None = None
    mid_formula: str | None = None
    mid_reclaim_percent: int | None = None
    promise_once: bool | None = None
    buffer_percent: int | None = None


DEFAULTS: Final = SpringtideConfig(
    mid_formula="v1.6",
    mid_reclaim_percent=100,
    promise_once=True,
    buffer_percent=0,
)

# The ranges of the worker's settings of the same names, and of records.
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "safety_margin_percent": (0, 1000),
    "cold_start_samples": (0, 1_000_000),
    "nsigma_multiplier": (0, 100),
    "mid_reclaim_percent": (0, 100),
    "buffer_percent": (0, 100),
}


def problems_of(config: SpringtideConfig) -> Iterator[tuple[str, str]]:
    """Every value that is out of range: the name of its field, and the problem."""
    yield from out_of_range(config, _RANGES)
    yield from unknown_words(config, {"mid_formula": MID_FORMULAS})
    if config.predictor is not None and not 0 < len(config.predictor) <= 100:
        yield "predictor", "predictor is not a name of 1 to 100 characters"


def warnings_for(config: SpringtideConfig) -> Iterator[str]:
    """Warn of a predictor that is not installed here; the workers' settings decide which run."""
    if config.predictor is not None and config.predictor not in PREDICTORS.points:
        yield (
            f"predictor {config.predictor!r:.80} is not installed here: where no worker runs it, "
            "the predictor of the worker's settings decides"
        )


SPRINGTIDE: Final = Section(KEY, DEFAULTS, problems_of, warnings_for, knows_all_keys=True)
"""How Springtide predicts and offers."""
