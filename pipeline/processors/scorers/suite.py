"""The laws of scorers, of this package and of others.

`check_scorer(SCORER, {...})` scores random nodes for random pods and raises AssertionError with the
law that is broken. It needs no test framework.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs, with_defaults
from pipeline.processors.loadaware.pod_amounts import Counting, pod_demand
from pipeline.processors.scorers.doubtful_usage import cap_doubtful
from pipeline.processors.scorers.rounding import MAX_SCORE
from pipeline.processors.scorers.scorer import Array, MetadataSource, Scorer, Texts
from pipeline.topics.pods import Container, PodRecord
from pipeline.topics.resource_amounts import MID, Resources

_Item = TypeVar("_Item", bound=np.generic)

_NODES: Final = 24
_QUESTIONS: Final = 8
_GIB: Final = 1 << 30
_LARGEST: Final[Mapping[str, int]] = {"cpu": 64_000, "memory": 256 * _GIB}


@dataclass
class Nodes:
    """Random nodes; `places` selects and orders them. Arrays cannot be written to.

    A node has the same columns whichever other nodes are there. Where `is_known` is False, nothing
    is known of usage.
    """

    seed: int
    counting: Counting
    places: IntArray
    is_known: BoolArray = field(default_factory=lambda: np.ones(_NODES, np.bool_))
    now: float = 1_700_000_000.0
    hidden: tuple[str, int] | None = None
    """A resource, and the position from which on its usage is unknown."""
    doubtful_from: int = sys.maxsize
    """The position from which on all usage is doubtful."""

    @property
    def names(self) -> list[str]:
        return [f"node-{place}" for place in self.places]

    def __len__(self) -> int:
        return len(self.places)

    @property
    def scalars(self) -> tuple[str, ...]:
        return ("nvidia.com/gpu", "ephemeral-storage")

    def allocatable(self, resource: str, kind: str = "allocatable") -> IntArray:
        amounts = self._random(f"allocatable {resource}")
        whole = (amounts * _LARGEST.get(resource, 8)).astype(np.int64)
        return self._chosen(np.where(self._random(f"has {resource}") < 0.1, 0, whole))

    def column(self, name: str) -> FloatArray:
        if name == "doubtful_usage":
            return (np.arange(len(self)) >= self.doubtful_from).astype(np.float64)
        if name == "as_of_seconds":
            return self._chosen(np.where(self.is_known, self.now - 10.0, np.nan))
        return self._chosen(np.where(self.is_known, self._random(name), np.nan))

    def usage(self, column: str, resources: Any) -> FloatArray:
        used = [self._random(f"{column} {name}") * _LARGEST.get(name, 8) for name in resources]
        known = self.is_known[:, None] & (self._random(f"knows {column}") > 0.1)[:, None]
        values = self._chosen(np.where(known, np.array(used).T, np.nan))
        if self.hidden is None or self.hidden[0] not in resources:
            return values
        resource, first = self.hidden
        hidden = values.copy()
        hidden[first:, [*resources].index(resource)] = np.nan
        return hidden

    def has_usage(self, column: str, resources: Any) -> BoolArray:
        used = self.usage(column, resources)
        known: BoolArray = np.logical_or.reduce(np.isfinite(used), axis=1)
        return known

    def is_fresh(self, expiration_seconds: float) -> BoolArray:
        return self._chosen(self.is_known)

    def is_new(self) -> BoolArray:
        return self._chosen(np.zeros(_NODES, np.bool_))

    def counted(self, name: str) -> IntArray:
        _must(name in self.counting.names, f"it reads {name!r}, which it does not declare")
        largest = _LARGEST.get(name.partition(":")[2], 8)
        return self._chosen((self._random(f"counted {name}") * largest).astype(np.int64))

    def in_flight_usage(self, *, prod: bool = False) -> IntArray:
        names = self.counting.load_aware.resources
        amounts = [self._random(f"flight {prod} {name}") * 1000 for name in names]
        return self._chosen(np.array(amounts).T.astype(np.int64))

    def unreported_usage(self) -> IntArray:
        return self.in_flight_usage() // 2

    def unmeasured(self) -> IntArray:
        return self._chosen((self._random("unmeasured") * 1000).astype(np.int64))

    def unseen(self) -> IntArray:
        return self._chosen((self._random("unseen") * 1000).astype(np.int64))

    def metadata(self, source: MetadataSource, key: str) -> Texts:
        values = (self._random(f"{source} {key}") * 100).astype(np.int64)
        texts = [None if value < 10 else str(value) for value in range(100)]
        return Texts(self._chosen(values), texts)

    def by_name(self, values: Mapping[str, Any], fields: Any) -> FloatArray:
        found = [values.get(name) for name in self.names]
        rows = [[getattr(value, field, np.nan) for value in found] for field in fields]
        return np.array(rows, np.float64).reshape(len(fields), len(self))

    def remembered(self, name: str, inputs: FloatArray, compute: Any) -> FloatArray:
        computed: FloatArray = compute(inputs)
        return computed

    def cached(self, name: str, compute: Callable[[], Array]) -> Array:
        return compute()

    def _random(self, name: str) -> FloatArray:
        return np.random.default_rng([self.seed, crc32(name.encode())]).random(_NODES)

    def _chosen(self, values: npt.NDArray[_Item]) -> npt.NDArray[_Item]:
        selected = values[self.places]
        selected.flags.writeable = False
        return selected


@dataclass(frozen=True)
class Subject:
    """The scorer under test with arguments as a user writes them."""

    scorer: Scorer[Any]
    args: Any
    counting: Counting
    seed: int

    def questions(self) -> list[tuple[Nodes, PodRecord]]:
        every = np.arange(_NODES)
        return [
            (Nodes(self.seed + i, self.counting, every), _pod(self.seed + i))
            for i in range(_QUESTIONS)
        ]

    def score(self, nodes: Nodes, pod: PodRecord) -> IntArray:
        try:
            scores = self.scorer.score(nodes, pod_demand(pod, self.counting), self.args)
        except AssertionError:
            raise
        except Exception as error:  # foreign code may raise anything
            raise AssertionError(f"it raises {error!r:.300}") from error
        is_right = isinstance(scores, np.ndarray) and scores.shape == (len(nodes),)
        _must(is_right and scores.dtype == np.int64, f"it answers {scores!r:.200}")
        return scores


def check_scorer(
    scorer: Scorer[Any], args: Mapping[str, Any] | None = None, *, seed: int = 0
) -> None:
    """Check a scorer with these arguments. Raises AssertionError that names the broken law."""
    read = scorer.read(args or {})
    counts = scorer.counts(read)
    load_aware = read if isinstance(read, LoadAwareArgs) else with_defaults(LoadAwareArgs())
    resources = tuple(dict.fromkeys(("cpu", "memory", *MID, *counts.resources)))
    counting = Counting(load_aware, resources, counts.amounts)
    if counts.packing is not None:
        counting = counting._replace(packing=counts.packing)
    subject = Subject(scorer, read, counting, seed)
    for name, law in LAWS.items():
        try:
            law(subject)
        except AssertionError as error:
            raise AssertionError(f"{scorer.name} breaks the law {name!r}: {error}") from error


def _scores_are_percent(subject: Subject) -> None:
    for nodes, pod in subject.questions():
        scores = subject.score(nodes, pod)
        outside = scores[(scores < 0) | (scores > MAX_SCORE)].tolist()
        _must(not outside, f"it answers {outside}")


def _same_question_same_scores(subject: Subject) -> None:
    for nodes, pod in subject.questions():
        first, second = subject.score(nodes, pod), subject.score(nodes, pod)
        _must(np.array_equal(first, second), "it answers differently when asked again")


def _order_of_nodes_does_not_matter(subject: Subject) -> None:
    for nodes, pod in subject.questions():
        scores = subject.score(nodes, pod)
        nodes.places = nodes.places[::-1]
        reordered = subject.score(nodes, pod)
        _must(np.array_equal(scores[::-1], reordered), "the order of nodes changes scores")


def _no_nodes_no_scores(subject: Subject) -> None:
    nodes, pod = subject.questions()[0]
    nodes.places = nodes.places[:0]
    subject.score(nodes, pod)


def _unknown_usage_scores_0(subject: Subject) -> None:
    if subject.scorer.expiration_seconds(subject.args) is None:
        return
    for nodes, pod in subject.questions():
        nodes.is_known[::2] = False
        scores = subject.score(nodes, pod)[::2]
        _must(not scores.any(), f"nodes without usage get {scores.tolist()}")


def _unknown_usage_scores_no_better(subject: Subject) -> None:
    if subject.scorer.expiration_seconds(subject.args) is None:
        return
    twice = np.tile(np.arange(_NODES), 2)
    for nodes, pod in subject.questions():
        for resource in ("cpu", "memory"):
            pairs = replace(nodes, places=twice, hidden=(resource, _NODES))
            known, unknown = np.split(subject.score(pairs, pod), 2)
            better = unknown > known
            _must(
                not better.any(),
                f"nodes score {unknown[better].tolist()} without usage of {resource}, and "
                f"{known[better].tolist()} with it",
            )


def _doubtful_usage_scores_no_better(subject: Subject) -> None:
    seconds = subject.scorer.expiration_seconds(subject.args)
    if seconds is None:
        return
    twice = np.tile(np.arange(_NODES), 2)
    for nodes, pod in subject.questions():
        pairs = replace(nodes, places=twice, doubtful_from=_NODES)
        scores = cap_doubtful(pairs, subject.score(pairs, pod), seconds)
        certain, doubtful = np.split(scores, 2)
        is_known = np.isfinite(nodes.usage("usage", ("cpu", "memory"))).all(axis=1)
        lowest = int(certain[is_known].min())
        _must(
            doubtful.max() <= lowest,
            f"nodes of doubtful usage score {doubtful.tolist()}, another {lowest}",
        )


LAWS: Final[Mapping[str, Callable[[Subject], None]]] = {
    "scores are whole numbers from 0 to 100": _scores_are_percent,
    "the same question has the same scores": _same_question_same_scores,
    "the order of nodes does not matter": _order_of_nodes_does_not_matter,
    "no nodes have no scores": _no_nodes_no_scores,
    "a node of unknown usage scores 0": _unknown_usage_scores_0,
    "a node scores no better without usage of a resource": _unknown_usage_scores_no_better,
    "a node of doubtful usage scores no better than others": _doubtful_usage_scores_no_better,
}


def _pod(seed: int) -> PodRecord:
    random = np.random.default_rng([seed, 1])
    cpu, memory = int(random.integers(0, 4000)), int(random.integers(0, 4 * _GIB))
    requests = Resources(cpu_millicores=cpu, memory_bytes=memory)
    limits = Resources(cpu_millicores=2 * cpu, memory_bytes=memory)
    container = Container(name="main", requests=requests, limits=limits)
    pod = PodRecord(node="", uid="u", cgroup_uid="u", namespace="d", name="pod")
    return msgspec.structs.replace(
        pod, pod_class="prod", requests=requests, limits=limits, containers=(container,)
    )


def _must(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)
