"""The maximum of other predictors, entity by entity: as careful as the most careful of them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.entity_columns import Rows
from pipeline.processors.model.model_config import ENTITIES
from pipeline.processors.model.predictor import Peaks, Predictor, View, never_known
from pipeline.processors.predictors.option_checks import check_mapping
from pipeline.processors.predictors.registry import Keys, build


class Maximum:
    """Highest peak of its `members`, with `options` by member, both as the settings give those of
    the model. Raises ValueError without members and where it is one itself, `PredictorError` for
    one that cannot be made.

    A member that knows nothing does not hide what the others know, for the answer is still no
    lower than any member's. What members keep is kept apart from what the same predictor keeps
    when it also runs by itself.
    """

    name = "max"

    def __init__(
        self,
        members: Sequence[str] = ("borg-default", "resource-central"),
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if not isinstance(members, list | tuple) or not members:
            raise ValueError(f"members is {members!r}, not a list of predictors")
        if self.name in members:
            raise ValueError(f"members has {self.name}, which is not to be a member of itself")
        of_members = check_mapping("options", options)
        self._members = build(
            members,
            {name: check_mapping(f"options: {name!r}", own) for name, own in of_members.items()},
            Keys("members", "options"),
        )
        # What one does not know, another may.
        self.never = tuple(
            name
            for name in ENTITIES
            if all(name in never_known(member) for member in self._members.values())
        )
        careful = any(member.prod == "pair" for member in self._members.values())
        self.prod: Literal["pair", "classes"] = "pair" if careful else "classes"
        self._names = {
            key: {column: f"{self.name}.{key}.{column}" for column in member.columns}
            for key, member in self._members.items()
        }
        self.columns = {
            self._names[key][column]: declared
            for key, member in self._members.items()
            for column, declared in member.columns.items()
        }

    def observe(
        self, rows: Rows, at: IntArray, values: FloatArray, end_ms: npt.NDArray[np.int64]
    ) -> None:
        """Let every member learn."""
        for key, member in self._members.items():
            member.observe(self._seen_by(key, rows), at, values, end_ms)

    def peak(self, view: View) -> Peaks:
        """Terms: each member's peak by its name, and its terms as `member.term`."""
        answers = {key: self._ask(key, member, view) for key, member in self._members.items()}
        terms = {key: answer.entities for key, answer in answers.items()}
        for key, answer in answers.items():
            terms |= {f"{key}.{name}": values for name, values in answer.terms.items()}
        return Peaks(
            reduce(np.fmax, [answer.entities for answer in answers.values()]),
            reduce(np.fmax, [answer.pods for answer in answers.values()]),
            terms,
            # Else a member that lacks requests would be more careful alone.
            bare=reduce(np.fmax, [_bare(answer) for answer in answers.values()]),
        )

    def _ask(self, key: str, member: Predictor, view: View) -> Peaks:
        return member.peak(dataclasses.replace(view, rows=self._seen_by(key, view.rows)))

    def _seen_by(self, key: str, rows: Rows) -> Rows:
        """The rows, where the member finds its columns under the names that it gave them."""
        if not self._names[key]:
            return rows
        seen = copy.copy(rows)
        seen.store = rows.store.renamed(self._names[key])
        return seen


def _bare(answer: Peaks) -> FloatArray:
    return answer.entities if answer.bare is None else answer.bare
