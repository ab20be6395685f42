"""The laws of every predictor of peaks, and a check of a predictor against them.

`check_predictor(MyPredictor)` sends seeded random streams of windows, including invalid ones,
through a bank that runs the predictor. It raises AssertionError with the law that the predictor
breaks. `LAWS` has the laws by name. No test framework is needed.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model import day_slots
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.model_config import ENTITIES, ModelConfig
from pipeline.processors.model.node_peaks import PredictorPeaks
from pipeline.processors.model.predictor import (
    Peaks,
    Predictor,
    View,
    WindowUsage,
    entities_without_peak,
    node_columns,
    node_predictors,
    protocol_violation,
)
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.processors.predictors.stateless import Stateless
from pipeline.processors.predictors.suite_windows import (
    GIB,
    random_windows,
    reversed_pods,
    steady_window,
)
from pipeline.topics.nodes import Strategy


@dataclass(frozen=True, slots=True)
class Subject:
    """The predictor under test: `make` gives a new one each time, `seed` the random streams."""

    make: Callable[[], Predictor]
    seed: int = 0

    def new(self) -> Predictor:
        """Make a predictor. Raises AssertionError if the result does not look like one."""
        try:
            made = self.make()
        except Exception as error:  # code of other packages can raise anything
            raise AssertionError(f"it cannot be made: {error!r:.300}") from error
        fault = protocol_violation(made)
        _must(fault is None, fault)
        return made

    def bank(self, *others: Predictor) -> Bank:
        return _bank_of(_Checked(self.new()), *others)

    def windows(self) -> list[NodeWindow]:
        return random_windows(np.random.default_rng(self.seed))


def check_predictor(make: Callable[[], Predictor], *, seed: int = 0) -> None:
    """Check a predictor against every law; `make` is its class, or a function that makes it. Raises
    AssertionError with the broken law and how it is broken."""
    subject = Subject(make, seed)
    for name, law in LAWS.items():
        try:
            law(subject)
        except AssertionError as error:
            who = getattr(make, "name", getattr(make, "__name__", make))
            raise AssertionError(f"{who} breaks the law {name!r}: {error}") from error


# -- the laws


def _peaks_are_valid(subject: Subject) -> None:
    bank = subject.bank()
    for window in subject.windows():
        bank.apply([window])
        bank.peaks(bank.nodes)


def _unknown_is_not_zero(subject: Subject) -> None:
    """The peak of a pod without known usage and request is unknown."""
    bank = subject.bank()
    nothing = np.full((1, 2), np.nan)
    for i in range(3):
        window = steady_window(i, usage=nothing, requests=nothing)
        bank.apply([window])
    pods = _answer(bank, window.node).pod_raw
    _must(
        np.isnan(pods).all(),
        f"it answers {pods.tolist()} for a pod without known usage and request",
    )


def _known_once_learned(subject: Subject) -> None:
    """After more than a day of complete windows, every entity and pod has a peak."""
    bank = subject.bank()
    for i in range(110):
        window = steady_window(i, usage=np.full((len(CLASSES), 2), [0.5, GIB]))
        bank.apply([window])
    answer = _answer(bank, window.node)
    unknown = [ENTITIES[i] for i in np.flatnonzero(np.isnan(answer.raw).any(axis=1))]
    missing = [name for name in unknown if name not in entities_without_peak(subject.new())]
    _must(not missing, f"the peak of {', '.join(missing)} is unknown after more than a day")
    _must(not np.isnan(answer.pod_raw).any(), "the peak of a pod is unknown after more than a day")


def _nodes_are_independent(subject: Subject) -> None:
    windows = subject.windows()
    together = subject.bank()
    together.apply(windows)
    for node in together.nodes:
        alone = subject.bank()
        alone.apply([window for window in windows if window.node == node])
        together_bits = _bits(together, node, among=together.nodes)
        _must_be_equal(_bits(alone, node), together_bits, "alone and among others")


def _batches_change_nothing(subject: Subject) -> None:
    windows = subject.windows()
    whole, pieces = subject.bank(), subject.bank()
    whole.apply(windows)
    for i in range(0, len(windows), 7):
        pieces.apply(windows[i : i + 7])
    for node in whole.nodes:
        _must_be_equal(_bits(pieces, node), _bits(whole, node), "in one batch and in several")


def _columns_restore_all_state(subject: Subject) -> None:
    """A bank that is restored half way continues as one that is not."""
    windows = subject.windows()
    half = len(windows) // 2
    first, second = subject.bank(), subject.bank()
    first.apply(windows[:half])
    for node in reversed(first.nodes):
        second.restore(node, first.encode_state(node))
        _must_be_equal(_bits(second, node), _bits(first, node), "before and after a restore")
    for bank in (first, second):
        bank.apply(windows[half:])
    for node in first.nodes:
        _must_be_equal(
            _bits(second, node), _bits(first, node), "with and without a restore half way"
        )


def _order_of_pods_changes_nothing(subject: Subject) -> None:
    windows = subject.windows()
    listed, backwards = subject.bank(), subject.bank()
    listed.apply(windows)
    backwards.apply([reversed_pods(window) for window in windows])
    for node in listed.nodes:
        _must_be_equal(_bits(backwards, node), _bits(listed, node), "in two orders of pods")


def _inputs_are_not_modified(subject: Subject) -> None:
    """A predictor that runs in the same bank sees the same as without it."""
    together, alone = _Witness(), _Witness()
    for bank in (subject.bank(together), _bank_of(alone)):
        for window in subject.windows():
            bank.apply([window])
            bank.peaks(bank.nodes)
    _must(together.seen == alone.seen, "it writes to its inputs, to models or to columns of others")


def _no_state_outside_columns(subject: Subject) -> None:
    predictor = subject.new()
    before = _attributes(predictor)
    bank = _bank_of(_Checked(predictor))
    for window in subject.windows():
        bank.apply([window])
        bank.peaks(bank.nodes)
    _must(_attributes(predictor) == before, "its attributes have changed since it was made")


LAWS: Final[Mapping[str, Callable[[Subject], None]]] = {
    "peaks are valid": _peaks_are_valid,
    "unknown is not zero": _unknown_is_not_zero,
    "known once learned": _known_once_learned,
    "nodes are independent": _nodes_are_independent,
    "batches change nothing": _batches_change_nothing,
    "columns restore all state": _columns_restore_all_state,
    "order of pods changes nothing": _order_of_pods_changes_nothing,
    "inputs are not modified": _inputs_are_not_modified,
    "no state outside columns": _no_state_outside_columns,
}


# -- what runs in the banks


class _Checked:
    """Wrap a predictor and check each of its answers."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self.name = predictor.name
        self.prod = predictor.prod
        self.columns = predictor.columns
        self.node_columns = node_columns(predictor)

    def learn(self, view: View, windows: WindowUsage) -> None:
        with _blamed("learn"):
            for predictor in node_predictors([self._predictor]):
                predictor.learn(view, windows)

    def observe(
        self, models: EntityModels, rows: IntArray, values: FloatArray, end_ms: IntArray
    ) -> None:
        with _blamed("observe"):
            self._predictor.observe(models, rows, values, end_ms)

    def peak(self, view: View) -> Peaks:
        with _blamed("peak"):
            answer: object = self._predictor.peak(view)
        if not isinstance(answer, Peaks):
            raise AssertionError(f"peak answers {type(answer).__name__}, not Peaks")
        whole, pods = (*view.entities.shape, 2), (len(view.pods), 2)
        _must_be_usage("peaks of entities", answer.entities, whole)
        _must_be_usage("peaks of pods", answer.pods, pods)
        if answer.without_requests is not None:
            _must_be_usage("peaks without requests", answer.without_requests, whole)
        _must(isinstance(answer.terms, Mapping), "terms are not arrays by name")
        for name, term in answer.terms.items():
            _must(isinstance(name, str), f"the term {name!r:.100} has no name")
            _must_have_shape(f"term {name!r}", term, whole)
            _must(not np.isinf(term).any(), f"term {name!r} is infinite")
        return answer


@contextmanager
def _blamed(method: str) -> Iterator[None]:
    """Turn exceptions of a predictor's method into a breach of the law."""
    try:
        yield
    except Exception as error:  # code of other packages can raise anything
        columns = " (a column that it does not declare?)" if isinstance(error, KeyError) else ""
        raise AssertionError(f"{method} raises {error!r:.300}{columns}") from error


class _Witness(Stateless):
    name = "witness"
    prod: Literal["pair", "classes"] = "classes"
    columns: Mapping[str, Column] = {"witness": Column((3,), empty=7.0)}

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def observe(
        self, models: EntityModels, rows: IntArray, values: FloatArray, end_ms: IntArray
    ) -> None:
        self._note(rows, values, end_ms)

    def peak(self, view: View) -> Peaks:
        models, rows = view.models, view.all_rows
        # The deciding predictor differs between the two banks.
        self._note(*(view.strategies[name] for name in sorted({*view.strategies} - {"predictor"})))
        given = {field.name for field in dataclasses.fields(view)} - {
            "models",
            "node_store",
            "strategies",
        }
        self._note(*(getattr(view, name) for name in sorted(given)))
        self._note(
            models.weight[rows], models.mean[rows], models.squares[rows], models.samples[rows]
        )
        self._note(
            models.first_ms[rows], models.last_ms[rows], models.seen_ms[rows], models.profile[rows]
        )
        self._note(*(models.sparse(rows, r)[part] for r in range(2) for part in range(3)))
        self._note(*(models.store[name][rows] for name in day_slots.COLUMNS))
        self._note(models.store["witness"][rows])
        return Peaks(*view.split(np.full((len(rows), 2), np.nan)))

    def _note(self, *arrays: npt.NDArray[Any]) -> None:
        self.seen.extend(array.tobytes() for array in arrays)


def _bank_of(*predictors: Predictor) -> Bank:
    names = tuple(predictor.name for predictor in predictors)
    strategy = Strategy(predictor=names[0])
    config = ModelConfig(predictors=names, strategy=strategy, expiration_seconds=7200.0)
    try:
        return Bank(config, dict(zip(names, predictors, strict=True)))
    except Exception as error:  # columns can be wrong in any way
        raise AssertionError(f"no bank can run it: {error}") from error


# -- comparing


def _answer(bank: Bank, node: str) -> PredictorPeaks:
    """The answer of the first predictor for a node."""
    return bank.peaks([node])[0].predictors[bank.predictors[0]]


def _bits(bank: Bank, node: str, among: Sequence[str] = ()) -> dict[str, bytes]:
    """State and first predictor's answer of a node as bytes by part, computed together with the
    nodes `among`."""
    nodes = [*among] or [node]
    answer = bank.peaks(nodes)[nodes.index(node)].predictors[bank.predictors[0]]
    return {
        "state": bank.encode_state(node),
        "peaks of entities": answer.raw.tobytes(),
        "peaks of pods": answer.pod_raw.tobytes(),
        **{f"term {name!r}": term.tobytes() for name, term in answer.terms.items()},
    }


def _must_be_equal(left: Mapping[str, bytes], right: Mapping[str, bytes], how: str) -> None:
    differing = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    _must(not differing, f"{', '.join(differing)} of a node differ {how}")


def _must_be_usage(what: str, values: FloatArray, shape: Sequence[int]) -> None:
    _must_have_shape(what, values, shape)
    _must(not np.isinf(values).any(), f"{what} are infinite")
    _must(not (values < 0.0).any(), f"{what} are negative")


def _must_have_shape(what: str, values: object, shape: Sequence[int]) -> None:
    if not isinstance(values, np.ndarray):
        raise AssertionError(f"{what} are {type(values).__name__}, not an array")
    _must(
        values.shape == tuple(shape) and values.dtype == np.float64,
        f"{what} are {values.dtype} {values.shape}, not float64 {tuple(shape)}",
    )


def _must(condition: object, problem: str | None) -> None:
    # `python -O` leaves out assert statements.
    if not condition:
        raise AssertionError(problem)


def _attributes(predictor: Predictor) -> str:
    return repr(getattr(predictor, "__dict__", {}))
