"""What predictors keep of each node beside columns: new, learned and restored states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from pipeline.errors import PredictorError
from pipeline.processors.arrays import ByteArray, FloatArray, IntArray
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.model.predictor import NodePredictor, NodeState, PodWindows, Predictor
from pipeline.processors.model.resource_pairs import TO_KUBERNETES
from pipeline.processors.model.training_batch import TrainingBatch


class NodeStates:
    """The states of those of `predictors` that are `NodePredictor`s, for peaks of Prod that hold
    for `horizon_seconds`. Raises `PredictorError` for a horizon that one of them does not have."""

    def __init__(self, predictors: Mapping[str, Predictor], horizon_seconds: float) -> None:
        self._predictors = {
            name: predictor
            for name, predictor in predictors.items()
            if isinstance(predictor, NodePredictor)
        }
        self._horizon_seconds = horizon_seconds
        for name, predictor in self._predictors.items():
            try:
                predictor.new_node(horizon_seconds)
            except ValueError as error:
                raise PredictorError(
                    f"model.horizon_seconds: predictor {name}: {error}",
                    key="model.horizon_seconds",
                    hint=f"choose another horizon, or leave {name} out of model.predictors",
                ) from error

    def new(self) -> dict[str, NodeState]:
        """The states of a new node, by predictor."""
        return {
            name: predictor.new_node(self._horizon_seconds)
            for name, predictor in self._predictors.items()
        }

    def restored(self, packed: Mapping[str, Mapping[str, bytes]]) -> dict[str, NodeState]:
        """The states of a node that `NodeState.pack` gave. Raises CheckpointError if one is
        damaged."""
        return {
            name: predictor.restore_node(packed.get(name, {}), self._horizon_seconds)
            for name, predictor in self._predictors.items()
        }

    def observe(
        self,
        models: EntityModels,
        batch: TrainingBatch,
        nodes: Sequence[NodeModels],
        entities: IntArray,
        classes: ByteArray,
        usage: FloatArray,
    ) -> None:
        """Learn the windows of `batch`, those of `nodes`: the rows of their `entities` (k, E), and
        the class codes (n,) and the valid `usage` (n, 2) of their pods."""
        if not self._predictors:
            return
        windows = PodWindows(
            end_ms=batch.end_ms,
            entities=entities,
            pods=np.concatenate([node.pod_rows for node in nodes]),
            uids=[node.listed.uids for node in nodes],
            node_index=batch.window_index,
            classes=classes,
            ended=np.concatenate([node.listed.ended for node in nodes]),
            requests=np.concatenate([node.listed.requests for node in nodes]) / TO_KUBERNETES,
            usage=usage,
        )
        for name, predictor in self._predictors.items():
            with named(predictor):
                states = [node.predictor_states[name] for node in nodes]
                predictor.observe_nodes(models, windows, states)


@contextmanager
def named(predictor: Predictor) -> Iterator[None]:
    """Raise `PredictorError`, which names the predictor, for whatever it raises."""
    try:
        yield
    except AssertionError:  # of the shared suite
        raise
    except Exception as error:  # foreign code may raise anything
        raise PredictorError(f"predictor {predictor.name} failed: {error!r:.300}") from error
