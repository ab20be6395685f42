"""The keys of `springtide-config`: what of the policy is ours.

Which predictor decides and how careful it is, by which formula Mid is worked out, and what is kept
back. Entries for some nodes and a node's own annotation are as in `colocation-config`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from pipeline.processors.policy.config_sections import Section, out_of_range, strange_texts
from pipeline.processors.predictors.registry import available
from pipeline.topics.overcommit_terms import MID_FORMULAS

ANNOTATION: Final = "springtide/strategy"
KEY: Final = "springtide-config"


class Own(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What one place says: the cluster, an entry of `nodeConfigs`, or a node's annotation. Where
    nobody says which predictor decides, or how careful it is, the settings of the worker do."""

    predictor: str | None = None
    safety_margin_percent: float | None = None
    cold_start_samples: int | None = None
    nsigma_multiplier: float | None = None
    mid_formula: str | None = None
    mid_reclaim_percent: int | None = None
    promise_once: bool | None = None
    buffer_percent: int | None = None


DEFAULTS: Final = Own(
    mid_formula="v1.6", mid_reclaim_percent=100, promise_once=True, buffer_percent=0
)

# Those of the settings of the same names, and of what a record takes.
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "safety_margin_percent": (0, 1000),
    "cold_start_samples": (0, 1_000_000),
    "nsigma_multiplier": (0, 100),
    "mid_reclaim_percent": (0, 100),
    "buffer_percent": (0, 100),
}


def problems_of(of: Own) -> Iterator[tuple[str, str]]:
    """Every value that is out of range, as our name of the field and what is wrong with it."""
    yield from out_of_range(of, _RANGES)
    yield from strange_texts(of, {"mid_formula": MID_FORMULAS})
    if of.predictor is not None and not 0 < len(of.predictor) <= 100:
        yield "predictor", "predictor is not a name of 1 to 100 characters"


def oddities_of(of: Own) -> Iterator[str]:
    """What is taken and hardly meant. Which predictors run the settings of the workers say."""
    if of.predictor is not None and of.predictor not in available():
        yield (
            f"predictor {of.predictor!r:.80} is none that is installed here: where no worker runs "
            "it, that of the worker's settings decides"
        )


SPRINGTIDE: Final = Section(KEY, DEFAULTS, problems_of, oddities_of, is_ours=True)
"""How Springtide predicts, and what it makes of it."""
