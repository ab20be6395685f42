"""The keys of `springtide-config`: Springtide's own part of the policy.

A key is a field with a description of the record that carries it: of `Strategy` (prediction) or of
`Overcommit` (Mid and Batch). Type, range and default are those of the field, except for the default
of `bufferPercent`. Entries for some nodes
and a node's own annotation work as in `colocation-config`.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, get_type_hints

import msgspec
from msgspec import inspect

from pipeline.processors.policy.config_sections import Section, out_of_range, unknown_words
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.topics.nodes import Strategy
from pipeline.topics.overcommit_policy import MID_FORMULAS, Overcommit

KEY: Final = "springtide-config"


KEYS: Final = {
    field.name: field
    for record in (Strategy, Overcommit)
    for field in msgspec.structs.fields(record)
    if isinstance(inspect.type_info(field.type), inspect.Metadata)
}
"""The fields of records that are keys, by name."""
_TYPES: Final = get_type_hints(Strategy) | get_type_hints(Overcommit)
_Keys: Any = msgspec.defstruct(
    "_Keys", [(name, _TYPES[name] | None, None) for name in KEYS],
    frozen=True, kw_only=True, rename="camel", omit_defaults=True,
)  # fmt: skip


class SpringtideConfig(_Keys):  # type: ignore[misc]  # made above
    """The settings of the cluster, of an entry of `nodeConfigs`, or of a node's annotation; None if
    not set. For keys of `Strategy` that are not set the worker's settings hold."""


BUFFER_PERCENT: Final = 10
"""As large as the change for which a Node need not be written (`resourceDiffThreshold`): a Node
never offers more than there is for that reason. A record without the field has no buffer."""
DEFAULTS: Final = SpringtideConfig(
    **{name: KEYS[name].default for name in Overcommit.__struct_fields__ if name in KEYS}
    | {"buffer_percent": BUFFER_PERCENT}
)
_RANGES: Final[Mapping[str, tuple[Any, Any]]] = {
    name: (info.type.ge, info.type.le)
    for name, field in KEYS.items()
    if isinstance(info := inspect.type_info(field.type), inspect.Metadata)
    and isinstance(info.type, inspect.IntType | inspect.FloatType)
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
        near = get_close_matches(config.predictor[:100], PREDICTORS.points, n=1)
        yield (
            f"predictor {config.predictor!r:.80} is not installed here"
            f"{f' (is {near[0]} meant?)' if near else ''}: where no worker runs it, "
            "the predictor of the worker's settings decides"
        )


SPRINGTIDE: Final = Section(KEY, DEFAULTS, problems_of, warnings_for)
"""How Springtide predicts and offers."""
