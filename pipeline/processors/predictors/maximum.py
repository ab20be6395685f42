"""The maximum of other predictors, entity by entity: as careful as the most careful of them."""

import copy
import dataclasses
from collections.abc import Mapping
from functools import reduce
from typing import Any, Final, Literal

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.model_config import ENTITIES
from pipeline.processors.model.predictor import (
    Peaks,
    View,
    WindowUsage,
    check_horizon,
    entities_without_peak,
    node_columns,
    node_predictors,
)
from pipeline.processors.predictors.declaration import Declaration
from pipeline.processors.predictors.options import Option, check_mapping
from pipeline.processors.predictors.registry import Keys, build

_NAME: Final = "max"


def _check_members(name: str, value: object) -> object:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{name} is {value!r}, not a list of predictors")
    if _NAME in value:
        raise ValueError(f"{name} has {_NAME}, which cannot be a member of itself")
    return value


def _check_options(name: str, value: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    for member, options in check_mapping(name, value).items():
        check_mapping(f"{name}: {member!r}", options)
    return value


class Maximum:
    """Predicts the highest peak of its members. An unknown peak of one member does not hide the
    others, so the answer is no lower than any member's. A member has columns of its own, also if
    the same predictor runs beside `max`: their state may differ by options. Raises `PredictorError`
    for a member that cannot be made."""

    name = _NAME
    declaration: Final = Declaration(
        summary="the highest peak of its members, entity by entity",
        options=(
            Option(
                "members", ["borg-default", "resource-central"], "predictors to combine",
                "installed predictors", _check_members,
            ),
            Option("options", {}, "options of members, by name", "as `model.predictor_options`",
                   _check_options),
        ),
        unknown="no member knows it",
        needs_samples=False,
        combines=True,
    )  # fmt: skip

    def __init__(self, **options: Any) -> None:
        given = self.declaration.checked(options)
        self._members = build(given["members"], given["options"], Keys("members", "options"))
        self.no_peak_for = tuple(
            name
            for name in ENTITIES
            if all(name in entities_without_peak(member) for member in self._members.values())
        )
        careful = any(member.prod == "pair" for member in self._members.values())
        self.prod: Literal["pair", "classes"] = "pair" if careful else "classes"
        self._names = {
            key: {column: f"{self.name}.{key}.{column}" for column in member.columns}
            for key, member in self._members.items()
        }
        self.columns: Mapping[str, Column] = {
            self._names[key][column]: declared
            for key, member in self._members.items()
            for column, declared in member.columns.items()
        }
        self.node_columns: Mapping[str, Column] = {
            f"{self.name}.{key}.{column}": declared
            for key, member in self._members.items()
            for column, declared in node_columns(member).items()
        }

    def check_horizon(self, seconds: float) -> None:
        for member in self._members.values():
            check_horizon(member, seconds)

    def observe(
        self, models: EntityModels, rows: IntArray, values: FloatArray, end_ms: IntArray
    ) -> None:
        for key, member in self._members.items():
            member.observe(self._models_of(key, models), rows, values, end_ms)

    def learn(self, view: View, windows: WindowUsage) -> None:
        for key, member in self._members.items():
            for learner in node_predictors([member]):
                learner.learn(self._view_of(key, view), windows)

    def peak(self, view: View) -> Peaks:
        """Return the highest peaks, with each member's peak and terms as terms."""
        answers = {
            key: member.peak(self._view_of(key, view)) for key, member in self._members.items()
        }
        terms = {key: answer.entities for key, answer in answers.items()}
        for key, answer in answers.items():
            terms |= {f"{key}.{name}": values for name, values in answer.terms.items()}
        return Peaks(
            reduce(np.fmax, [answer.entities for answer in answers.values()]),
            reduce(np.fmax, [answer.pods for answer in answers.values()]),
            terms,
            # Else these would be `entities`, and adding a member would lower the peak of another
            # that has its own peaks without requests.
            without_requests=reduce(
                np.fmax, [_without_requests(answer) for answer in answers.values()]
            ),
            outcomes=next((own.outcomes for own in answers.values() if own.outcomes), ()),
        )

    def _view_of(self, key: str, view: View) -> View:
        """The view with the member's columns under the names that the member declared."""
        names = {
            column: f"{self.name}.{key}.{column}" for column in node_columns(self._members[key])
        }
        return dataclasses.replace(
            view,
            models=self._models_of(key, view.models),
            node_store=view.node_store.renamed(names) if names else view.node_store,
        )

    def _models_of(self, key: str, models: EntityModels) -> EntityModels:
        """The rows with the member's columns under the names that the member declared."""
        if not self._names[key]:
            return models
        renamed = copy.copy(models)
        renamed.store = models.store.renamed(self._names[key])
        return renamed


def _without_requests(answer: Peaks) -> FloatArray:
    return answer.entities if answer.without_requests is None else answer.without_requests


PREDICTOR: Final = Maximum
