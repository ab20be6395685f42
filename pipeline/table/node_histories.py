"""Mean and deviation of each node's usage over days, by node pool.

The numbers of predictions are terms of the predictors `nsigma-v1` and `nsigma-v2`. Where neither
runs, the history of nodes is unknown. An archive has them, too
(`pipeline.processors.hot_nodes.usage_history`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy as np

from pipeline.errors import InvalidRecordError, KeyMismatchError
from pipeline.kafka.refused_records import refuse
from pipeline.processors.arrays import FloatArray
from pipeline.processors.calibrated.pool_fold import StatedOutcomes
from pipeline.processors.hot_nodes.threshold_advice import NodeHistories, Present
from pipeline.processors.kubernetes.pod_classes import COUNTED_AS_PROD
from pipeline.processors.model.model_config import RESOURCES
from pipeline.table.apply_records import Headers, node_of
from pipeline.table.limits import AHEAD_SECONDS, OLDEST_PREDICTION_SECONDS
from pipeline.table.node_names import RowArray
from pipeline.table.state_table import Table
from pipeline.times import parse_time, time_or_none
from pipeline.topics.alerts import RULES
from pipeline.topics.codec import DECODE_ERRORS, decode_error, decode_json
from pipeline.topics.hot_node_policy import DEFAULT_POOL, HotNodePolicy
from pipeline.topics.pool_outcomes import NodeOutcomes
from pipeline.topics.predictions import EntityPeaks
from pipeline.topics.resource_amounts import ByResource
from pipeline.topics.result_header import Position, Result, position_of

_PREDICTORS: Final = ("nsigma-v1", "nsigma-v2")
_NOTHING: Final = ByResource()
_FIELDS: Final = ("mean", "stdev", "seconds", "samples")
_UNKNOWN: Final = np.full((len(_FIELDS), len(RULES)), np.nan)


class _Prediction(Result, frozen=True, kw_only=True, gc=False):
    """The fields of a `PredictionRecord` that are read."""

    node_peaks: EntityPeaks = EntityPeaks()
    classes: dict[str, EntityPeaks] = msgspec.field(default_factory=dict)
    outcomes: msgspec.Raw = msgspec.Raw(b"null")


class _History(NamedTuple):
    """`values` are the `_FIELDS` by rule, in cores or bytes, and `at` is the time of the record.
    `outcomes` are encoded: as objects those of many nodes would take much memory."""

    position: Position
    at: float
    values: FloatArray
    outcomes: bytes


class Histories(Protocol):
    """Histories of nodes."""

    def values(self, node: str, now: float) -> FloatArray:
        """Mean, deviation, seconds and samples (4, rules) of a node, cores and bytes; NaN is
        unknown."""


class HistoryStore:
    """The newest history of each node that has a prediction."""

    def __init__(self) -> None:
        self._by_node: dict[str, _History] = {}

    def apply(self, key: bytes | None, value: bytes | None, headers: Headers = ()) -> bool:
        """Apply a record of predictions; False if there is a newer one. Raises `RecordError` if it
        is invalid."""
        node = node_of(key)
        old = self._by_node.get(node)
        if value is None:
            withdrawn = position_of(headers)
            if old is None or (withdrawn is not None and withdrawn < old.position):
                return False
            del self._by_node[node]
            return True
        record = decode_json(_Prediction, value)
        if record.node != node:
            raise KeyMismatchError(f"payload is about {record.node[:80]!r}, key about {node!r:.80}")
        if old is not None and record.position < old.position:
            return False
        try:
            values = _values(record)
        except OverflowError as error:
            raise InvalidRecordError(f"a count is too large: {error}") from error
        at, outcomes = parse_time(record.as_of), _outcomes(record)
        self._by_node[node] = _History(record.position, at, values, outcomes)
        return True

    def forget(self, before: float) -> None:
        """Forget predictions from before a time: the topic may have been created anew."""
        self._by_node = {n: own for n, own in self._by_node.items() if own.at >= before}

    def values(self, node: str, now: float) -> FloatArray:
        """Mean, deviation, seconds and samples (4, rules) of a node, cores and bytes; NaN is
        unknown, as is everything without a recent prediction."""
        own = self._by_node.get(node)
        return _UNKNOWN if own is None or now - own.at >= OLDEST_PREDICTION_SECONDS else own.values

    def outcomes(self, node: str, now: float) -> StatedOutcomes | None:
        """The outcomes of calibrated peaks that a node stated last; None if it stated none, or by a
        clock that is ahead."""
        own = self._by_node.get(node)
        if own is None or not own.outcomes or not 0.0 <= own.at <= now + AHEAD_SECONDS:
            return None
        outcomes = msgspec.json.decode(own.outcomes, type=NodeOutcomes)
        return StatedOutcomes(round(1000 * own.at), outcomes)


def _outcomes(record: _Prediction) -> bytes:
    """The outcomes that a prediction states, encoded; none if they are invalid, which costs nothing
    else of it."""
    try:
        outcomes = msgspec.json.decode(record.outcomes, type=NodeOutcomes | None)
    except DECODE_ERRORS as error:
        refuse("outcomes", decode_error("outcomes", error), node=record.node)
        return b""
    return b"" if outcomes is None else msgspec.json.encode(outcomes)


def _values(record: _Prediction) -> FloatArray:
    """Those of the node, and of the pods that count as Prod, (4, rules).

    Means of classes add up. So do their deviations if the classes rise and fall together; else the
    sum is too high.
    """
    prod = [_entity(record.classes[name]) for name in COUNTED_AS_PROD if name in record.classes]
    whole = np.stack(prod) if prod else _UNKNOWN[None, :, :2]
    sums = [*whole[:, :2].sum(axis=0), *whole[:, 2:].min(axis=0)]
    return np.concatenate([_entity(record.node_peaks), sums], axis=1)


def _entity(entity: EntityPeaks) -> FloatArray:
    """The `_FIELDS` by resource, (4, 2)."""
    terms = next((entity.terms[name] for name in _PREDICTORS if name in entity.terms), {})
    first, last = (time_or_none(at) for at in (entity.model.first_at, entity.model.last_at))
    seconds = np.nan if first is None or last is None else last - first
    pairs = [terms.get("mean", _NOTHING), terms.get("stdev", _NOTHING)]
    numbers = [[pair.cpu, pair.memory] for pair in pairs]
    samples = entity.model.samples
    return np.array([*numbers, [seconds] * 2, [samples.cpu, samples.memory]], np.float64)


class PoolHistory(NamedTuple):
    """A node pool: its name, the policy of most of its nodes, None without thresholds, and the
    history of its nodes."""

    name: str
    policy: HotNodePolicy | None
    nodes: NodeHistories

    @property
    def present(self) -> Present:
        """The thresholds of hot nodes in force."""
        policy = self.policy or HotNodePolicy()
        high = [policy.high_percent, policy.prod_high_percent]
        low = [policy.low_percent, policy.prod_low_percent]
        return Present(by_rule(*high), by_rule(*low), policy.use_deviation_thresholds)


def by_rule(node: Mapping[str, float], prod: Mapping[str, float]) -> FloatArray:
    """Percentages by rule (rules,), NaN where there is none."""
    return np.array([own.get(name, np.nan) for own in (node, prod) for name in RESOURCES])


def pool_members(table: Table) -> dict[str, list[int]]:
    """The rows of the nodes of each pool, pools and nodes by name. Nodes without thresholds are in
    the default pool."""
    members: dict[str, list[int]] = {}
    names, records = table.rows()
    for row in sorted(table.known_rows.tolist(), key=names.__getitem__):
        node = records[row].node
        policy = None if node is None else node.hot_nodes
        members.setdefault(DEFAULT_POOL if policy is None else policy.pool, []).append(row)
    return dict(sorted(members.items()))


def pool_histories(
    table: Table, store: Histories, now: float, expiration_seconds: float
) -> Iterator[PoolHistory]:
    """Yield the history of each pool, by name; usage older than `expiration_seconds` is stale."""
    names, records = table.rows()
    for name, rows in pool_members(table).items():
        nodes = [records[row].node for row in rows]
        policies = [None if node is None else node.hot_nodes for node in nodes]
        values = [store.values(names[row], now) for row in rows]
        yield PoolHistory(
            name, _most_common(policies),
            _nodes(table, np.array(rows, np.intp), values, now, expiration_seconds),
        )  # fmt: skip


def whole_cluster(pools: Sequence[PoolHistory]) -> NodeHistories:
    """The nodes of all pools, at least one."""
    return NodeHistories(*map(np.concatenate, zip(*(pool.nodes for pool in pools), strict=True)))


def _most_common(policies: Sequence[HotNodePolicy | None]) -> HotNodePolicy | None:
    """While a policy changes node by node, that of most nodes."""
    texts = [msgspec.json.encode(policy, order="deterministic") for policy in policies]
    counts = Counter(texts)
    return policies[texts.index(max(sorted(counts), key=counts.__getitem__))]


def _nodes(
    table: Table, rows: RowArray, values: Sequence[FloatArray], now: float,
    expiration_seconds: float,
) -> NodeHistories:  # fmt: skip
    room = np.stack([table["raw_cpu_cores"][rows], table["raw_memory_bytes"][rows]], axis=1)
    columns = [
        table[f"{scope}_{unit}"][rows]
        for scope in ("usage", "prod_usage") for unit in ("cpu_cores", "memory_bytes")
    ]  # fmt: skip
    mean, stdev, seconds, samples = np.stack(values, axis=1)
    window = table["window_seconds"][rows][:, None]
    with np.errstate(over="ignore", invalid="ignore"):  # absurd amounts are unknown to readers
        percent = np.tile(100.0 / np.where(room > 0.0, room, np.nan), 2)
        return NodeHistories(
            mean=mean * percent,
            stdev=stdev * percent,
            seconds=np.minimum(seconds, samples * window),
            usage=np.stack(columns, axis=1) * percent,
            is_fresh=table.fresh(rows, now, expiration_seconds),
        )
