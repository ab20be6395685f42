"""The state of an estimator of river as bytes, and back.

Checkpoints are in a topic, which others may be able to write: a pickle is read by `_Restricted`
alone. It makes objects of river's classes without calling their constructors, a few containers and
numbers, and refuses every other name. A constructor of river's compiled part gets small numbers
only, and instructions of pickles that set aside memory by a number are refused: either could end
the process.

An estimator exists only while it learns or predicts: it is made from bytes, and becomes bytes
again. So a restored state continues bit by bit as one that was never saved.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pipeline.processors.river_models.limits import MOST_NUMBER, MOST_STATE_BYTES

_PROTOCOL: Final = 5
_ALLOWED: Final = frozenset({
    ("builtins", "dict"), ("builtins", "float"), ("builtins", "int"),
    ("collections", "Counter"), ("collections", "OrderedDict"), ("collections", "defaultdict"),
    ("collections", "deque"), ("numpy", "dtype"), ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"), ("random", "Random"),
})  # fmt: skip
_REFUSED: Final = frozenset(
    ("PUT", "BINPUT", "LONG_BINPUT", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "INST", "OBJ")
)
_COMPILED: Final = "river._river_rust."
_PACKAGES: Final = tuple(
    f"river.{name}"
    for name in (
        "compose", "conf", "dummy", "ensemble", "linear_model", "optim", "preprocessing", "stats",
        "utils",
    )
)  # fmt: skip


class StateError(ValueError):
    """Bytes that are no state, or an estimator whose state cannot be stored."""


def encode(estimator: Any, most_bytes: int = MOST_STATE_BYTES) -> bytes:
    """The state of an estimator. Raises StateError if it takes more than `most_bytes`, or if it has
    parts that are not restored."""
    with _as_state_error("its state cannot be stored"):
        data = pickle.dumps(estimator, _PROTOCOL)
    if len(data) > most_bytes:
        raise StateError(f"its state takes {len(data)} bytes, more than {most_bytes}")
    return data


def decode(data: bytes, like: type[Any]) -> Any:
    """The estimator of `encode`, of the type `like`. Raises StateError for any other bytes."""
    if len(data) > MOST_STATE_BYTES:
        raise StateError(f"a state of {len(data)} bytes, more than {MOST_STATE_BYTES}")
    with _as_state_error("not a state"):
        for instruction, _, _ in pickletools.genops(data):
            if instruction.name in _REFUSED:
                raise pickle.UnpicklingError(f"{instruction.name} is not part of a state")
        estimator = _Restricted(io.BytesIO(data)).load()
    if type(estimator) is not like:
        raise StateError(f"a state of {type(estimator).__name__}, not of {like.__name__}")
    return estimator


def learn_one(
    state: bytes, like: type[Any], features: dict[str, float], target: float, most_bytes: int
) -> bytes:
    """The state of an estimator after one more example. Raises StateError if it cannot learn it, or
    takes more than `most_bytes` then."""
    estimator = decode(state, like)
    with _as_state_error("it cannot learn"):
        estimator.learn_one(features, target)
    return encode(estimator, most_bytes)


def predict_one(state: bytes, like: type[Any], features: dict[str, float]) -> float:
    """What an estimator predicts, NaN if that is no finite number. Where it knows an interval, the
    upper bound. Raises StateError if it cannot predict."""
    from river import compose, conf

    estimator = last = decode(state, like)
    if isinstance(estimator, compose.Pipeline):
        *_, last = estimator.steps.values()
    with _as_state_error("it cannot predict"):
        if isinstance(last, conf.RegressionJackknife):
            prediction = float(estimator.predict_one(features, with_interval=True).upper)
        else:
            prediction = float(estimator.predict_one(features))
    return prediction if math.isfinite(prediction) else math.nan


@contextmanager
def _as_state_error(problem: str) -> Iterator[None]:
    """Turn whatever river raises into a StateError."""
    try:
        yield
    except BaseException as error:
        if not is_of_river(error):
            raise
        raise StateError(f"{problem}: {error!r:.200}") from error


def is_of_river(error: BaseException) -> bool:
    """Whether an estimator may raise it: any exception, and a panic of river's compiled part, which
    is no `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


class _Restricted(pickle.Unpickler):
    """Read the names that states of river's estimators have, and no other."""

    def find_class(self, module: str, name: str) -> Any:
        """The class of a name. Raises UnpicklingError for a name that is not allowed."""
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        is_river = module.startswith(_COMPILED) or any(
            module == package or module.startswith(f"{package}.") for package in _PACKAGES
        )
        if is_river and name.isidentifier():
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return _maker(found)
        raise pickle.UnpicklingError(f"{module}.{name} is not part of an estimator's state")


def _maker(made: type[Any]) -> type[Any]:
    """A class whose instances are those of `made`, before its constructor has run."""

    def __new__(cls: type[Any], *arguments: Any) -> Any:  # noqa: N807
        if made.__module__.startswith(_COMPILED):
            if not all(_is_small(argument) for argument in arguments):
                raise pickle.UnpicklingError(f"{made.__name__} of {arguments!r:.80}")
            return made(*arguments)
        if arguments:
            raise pickle.UnpicklingError(f"{made.__name__} with arguments")
        new: Any = made.__new__
        return new(made)

    return type(made.__name__, (), {"__new__": __new__})


def _is_small(argument: object) -> bool:
    return not isinstance(argument, int | float) or abs(argument) <= MOST_NUMBER
