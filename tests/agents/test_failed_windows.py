"""Windows that cannot be applied: no half-changed model is saved, and the rest goes on."""

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.processors.model.learner import Learner
from pipeline.processors.model.training_batch import TrainingBatch
from tests.agents.logs import LogWriter, make_log
from tests.agents.owners import Owner, content, undisturbed

NODES = ("a", "b", "c")
Break = Callable[[Callable[[TrainingBatch], bool]], None]


@pytest.fixture
def break_if(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Let the learner fail in the midst of a batch for which a condition holds."""
    learn = Learner.learn

    def set_condition(condition: Callable[[TrainingBatch], bool]) -> None:
        def learn_and_fail(self: Learner, batch: TrainingBatch, nodes: Any) -> None:
            learn(self, batch, nodes)
            if condition(batch):
                raise RuntimeError("a bug of a predictor")

        monkeypatch.setattr(Learner, "learn", learn_and_fail)

    return set_condition


async def owner_of_a_log() -> tuple[LogWriter, Owner]:
    broker, log = make_log(4, *NODES)
    owner = await Owner(broker, "x").load()
    await owner.round()
    return log, owner


async def test_half_changed_models_are_not_saved_and_not_used_again(break_if: Break) -> None:
    log, owner = await owner_of_a_log()
    log.windows(1, *NODES)
    broken = [True]
    break_if(lambda _: broken[0])
    with pytest.raises(RuntimeError):
        await owner.apply()
    written = len(owner.broker.records("t.checkpoints"))
    await owner.round()
    assert len(owner.broker.records("t.checkpoints")) == written
    broken.clear()
    broken.append(False)
    # A rebalance before the worker ends may assign the partition again.
    await owner.load(owner.shard)
    assert content(owner.model) == content(undisturbed(owner.broker))
