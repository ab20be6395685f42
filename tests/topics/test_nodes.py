"""The strategy of a node: valid ranges, and records that are refused."""

import re
from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec
import pytest

from pipeline.errors import InvalidRecordError
from pipeline.processors.model.predictor import strategy_columns
from pipeline.settings.model_settings import ModelSettings
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord, Strategy
from pipeline.topics.windows import decode_window, encode_window
from tests.processors.joined import NODE_ROW, joined

NUMBERS = [
    name
    for name in Strategy.__struct_fields__
    if name not in ("predictor", "memory_collect_policy")
]
BAD = [
    '"cold_start_samples":100000000000000000000', '"cold_start_samples":9223372036854775808',
    '"cold_start_samples":-1', '"safety_margin_percent":-200', '"safety_margin_percent":1e300',
    '"cold_start_seconds":1e18', '"nsigma_multiplier":-3', '"resource_diff_threshold_percent":-5',
    '"predictor":""', f'"predictor":"{"x" * 101}"',
]  # fmt: skip


def record(strategy: str) -> bytes:
    return f'{{"version":1,"node":"node-1","strategy":{strategy}}}'.encode()


def with_strategy(strategy: str) -> bytes:
    """A window of which the strategy is written as `strategy`."""
    head, facts, rest = encode_window(joined(NODE_ROW)).split(b"\n", 2)
    changed = re.sub(rb'"strategy":\{[^}]*\}', b'"strategy":' + strategy.encode(), facts)
    return b"\n".join((head, changed, rest))


@pytest.mark.parametrize("field", BAD)
def test_a_strategy_out_of_range_is_refused_in_a_node_and_in_a_window(field: str) -> None:
    with pytest.raises(InvalidRecordError):
        decode_json(NodeRecord, record(f"{{{field}}}"))
    with pytest.raises(InvalidRecordError, match="schema"):
        decode_window(with_strategy(f"{{{field}}}"))


@pytest.mark.parametrize("bound", ["ge", "le"])
def test_every_valid_strategy_gives_valid_predictor_settings(bound: str) -> None:
    text = msgspec.json.encode({name: getattr(_range(Strategy, name), bound) for name in NUMBERS})
    overrides = decode_json(NodeRecord, record(text.decode())).strategy
    assert overrides is not None
    assert decode_window(with_strategy(text.decode())).node.strategy == overrides.over(Strategy())
    columns = strategy_columns([overrides.over(Strategy())])
    assert 0.0 <= columns["safety_margin_percent"][0] <= 1000.0
    assert 0 <= columns["cold_start_samples"][0] <= 1_000_000


@pytest.mark.parametrize("name", NUMBERS)
def test_ranges_equal_those_of_the_settings(name: str) -> None:
    kinds = (Strategy, ModelSettings)
    ranges = [_range(kind, name) for kind in kinds if name in kind.__struct_fields__]
    assert len({(meta.ge, meta.le) for meta in ranges}) == 1


def _range(kind: type, name: str) -> msgspec.Meta:
    hint = get_type_hints(kind, include_extras=True)[name]
    if get_origin(hint) is not Annotated:
        hint = get_args(hint)[0]
    (meta,) = [meta for meta in get_args(hint)[1:] if meta.ge is not None]
    assert isinstance(meta, msgspec.Meta)
    return meta
