"""Scorers by name: the `SCORER` of each module here, and those of other packages."""

from typing import Any, Final

from pipeline.errors import InvalidPolicyError
from pipeline.plugin_registry import Registry
from pipeline.processors import scorers
from pipeline.processors.scorers.scorer import Scorer

SCORERS: Final = Registry[Scorer[Any]](
    kind="plugin",
    package=scorers,
    attribute="SCORER",
    group="springtide.scorers",
    required="a Scorer",
    is_valid=lambda plugin: isinstance(plugin, Scorer),
    error=lambda problem, hint: InvalidPolicyError(problem, hint=hint),
)
