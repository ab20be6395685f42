"""A hash of the configuration of the calibrated predictor: the constants of this package and the
prior. Equal hashes mean that no suite, pool or node had constants of its own."""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np

from pipeline.processors import calibrated
from pipeline.processors.calibrated import fleet_prior


@cache
def configuration_hash() -> str:
    """Twelve hexadecimal digits, equal in every process."""
    digest = hashlib.sha256(fleet_prior.histogram().tobytes())
    for line in constants():
        digest.update(line.encode())
    return digest.hexdigest()[:12]


def constants() -> Iterator[str]:
    """Each constant of each module of this package, as text."""
    for module in iter_modules(calibrated.__path__, f"{calibrated.__name__}."):
        for name, value in sorted(vars(import_module(module.name)).items()):
            if name.isupper() and not callable(value):
                yield f"{module.name}.{name} = {_text(value)}\n"


def _text(value: Any) -> str:
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)
