"""Exported models are restored bit for bit, or rounded in Koordinator's format."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.errors import CheckpointError, CheckpointLayoutError
from pipeline.processors.exchange.export_models import replace_state, to_koordinator
from pipeline.processors.exchange.import_models import from_koordinator
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ENTITIES, VPA, ModelConfig
from tests.processors.hot_nodes.node_windows import Stream, hot_window
from tests.processors.windows import GIB, START_MS, Pod, window

CONFIG = ModelConfig()
NODE = "node-a"
LATER_MS = START_MS + 3_600_000
PODS = [Pod("web", (1.0, GIB)), Pod("job", (0.3, GIB / 4), "batch")]


def state_of(windows: int, config: ModelConfig = CONFIG, machine: str = "machine-1") -> bytes:
    bank = Bank(config)
    bank.apply([window(end, PODS, machine=machine) for end in range(windows)])
    return bank.encode_state(NODE)


def import_state(theirs: bytes, mine: bytes | None = None, **changes: Any) -> bytes:
    given: dict[str, Any] = {"config": CONFIG, "now_ms": LATER_MS, "node": NODE}
    given |= {"may_be_older": True} | changes
    node, config = given.pop("node"), given.pop("config")
    state, _ = replace_state(node, state_of(9) if mine is None else mine, theirs, config, **given)
    return state


def test_an_exported_state_is_restored_unchanged() -> None:
    exported = state_of(3)
    assert import_state(exported) == exported
    _, replaced = replace_state(
        NODE, state_of(9), exported, CONFIG, now_ms=LATER_MS, may_be_older=True
    )
    assert replaced is not None
    assert (replaced.applied, state_codec.decode(exported).applied) == (9, 3)


def test_an_older_export_replaces_no_newer_models() -> None:
    with pytest.raises(CheckpointError, match="older than the node's models of"):
        replace_state(NODE, state_of(9), state_of(3), CONFIG, now_ms=LATER_MS)
    # It was learned from a file, to replace whatever the node has.
    learned = state_of(3, machine="")
    assert replace_state(NODE, state_of(9), learned, CONFIG, now_ms=LATER_MS)[1] is not None


def test_the_replaced_state_may_be_damaged() -> None:
    exported = state_of(3)
    assert replace_state(NODE, state_of(9)[:-1], exported, CONFIG, now_ms=LATER_MS) == (
        exported,
        None,
    )


def test_a_state_without_a_machine_gets_the_nodes_machine() -> None:
    result = state_codec.decode(import_state(state_of(3, machine="")))
    learned = state_codec.decode(state_of(3, machine=""))
    assert result == msgspec.structs.replace(learned, machine_id="machine-1", epoch=1)
    damaged = state_codec.decode(import_state(state_of(3, machine=""), state_of(9)[:-1]))
    assert damaged == learned


def hot_state(windows: int, **fields: Any) -> bytes:
    """The state of a node that was hot in so many windows; its alert opens with the fifth."""
    stream = Stream()
    for end in range(windows):
        stream.apply(hot_window(end, 90.0, node=NODE, **fields))
    return stream.bank.encode_state(NODE)


@pytest.mark.parametrize("exported", [3, 4])
def test_an_open_alert_survives_an_older_export_and_closes(exported: int) -> None:
    stream = Stream()
    stream.bank.restore(NODE, import_state(hot_state(exported), hot_state(6)))
    for end in range(6, 9):
        stream.apply(hot_window(end, 10.0, node=NODE))
    (record,) = stream.records[NODE]
    assert (record.transition, record.id) == ("closed", f"{NODE}/node_cpu/2023-11-14T22:16:00Z")


def test_an_alert_that_is_over_does_not_come_back_with_an_export() -> None:
    calm = Stream(Bank(CONFIG))
    calm.bank.restore(NODE, hot_state(6))
    for end in range(6, 9):
        calm.apply(hot_window(end, 10.0, node=NODE))
    stream = Stream()
    stream.bank.restore(NODE, import_state(hot_state(6), calm.bank.encode_state(NODE)))
    stream.apply(hot_window(9, 10.0, node=NODE))
    assert stream.open[NODE] == ()


def test_an_alert_that_opened_after_the_checkpoint_comes_with_the_export() -> None:
    stream = Stream()
    stream.bank.restore(NODE, import_state(hot_state(6), hot_state(3)))
    for end in range(6, 9):
        stream.apply(hot_window(end, 10.0, node=NODE))
    assert [record.transition for record in stream.records[NODE]] == ["closed"]


def test_models_that_were_learned_from_a_file_leave_the_alerts_of_the_node() -> None:
    state = state_codec.decode(import_state(state_of(3, machine=""), hot_state(6)))
    assert state.alerts == state_codec.decode(hot_state(6)).alerts


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"node": "node-b"}, CheckpointError, "models of node 'node-a', not of 'node-b'"),
        ({"now_ms": START_MS - 3_600_000}, CheckpointError, "is yet to come"),
        ({"config": ModelConfig(profile=VPA)}, CheckpointLayoutError, "is of model"),
        ({"config": ModelConfig(predictors=("percentile", "hourly-nsigma"))},
         CheckpointLayoutError, "settings that shape what is learned"),
    ],
)  # fmt: skip
def test_a_state_of_another_node_time_or_layout_is_refused(
    changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        import_state(state_of(3), **changes)


def test_a_damaged_export_is_refused() -> None:
    exported = state_of(3)
    for damaged, says in (
        (b"", "not a node state"),
        (b"PAR1" + exported, "not a node state"),
        (exported[:-1], "checksum"),
        (exported[:6] + b"\x09\x00" + exported[8:], "layout version 9"),
    ):
        with pytest.raises(CheckpointError, match=says):
            import_state(damaged)


# -- Koordinator's form


def test_koordinator_can_read_exported_models() -> None:
    state = state_codec.decode(state_of(30))
    documents = json.loads(json.dumps(to_koordinator(state, CONFIG.profiles)))
    assert documents.keys() == {
        "__node__", "__node-sys__", "__node-__", "web", "job",
        *(f"__node-koord-{name}__" for name in ("prod", "mid", "batch", "free")),
    }  # fmt: skip
    names = [*ENTITIES, *state.uids]
    for uid, document in documents.items():
        assert document["UID"] == uid
        learned = from_koordinator(document)
        row = names.index(learned.name)
        assert learned.last_ms == state.end_ms
        for resource, histogram in enumerate(learned.histograms):
            assert histogram is not None
            weights = state_codec.dense_weights(state, resource, CONFIG.profiles)[row]
            assert histogram.reference_ms == state.reference_ms[0][resource]
            heaviest = float(weights.max())
            np.testing.assert_allclose(histogram.weights, weights, atol=heaviest / 9_000)
            assert histogram.weights.sum() == pytest.approx(weights.sum())


def test_models_with_other_half_lives_cannot_be_exported() -> None:
    config = ModelConfig(class_profiles={"batch": VPA})
    state = state_codec.decode(state_of(3, config))
    with pytest.raises(CheckpointError, match="half-lives of batch are not those of Koordinator"):
        to_koordinator(state, config.profiles)


@pytest.mark.parametrize("uid", ["../evil", ".hidden", "a/b", "a\0", "\x1b[2J"])
def test_an_unsafe_uid_is_refused_as_file_name(uid: str) -> None:
    bank = Bank(CONFIG)
    bank.apply([window(1, [Pod(uid, (1.0, GIB))])])
    with pytest.raises(CheckpointError, match="is not a valid file name"):
        to_koordinator(state_codec.decode(bank.encode_state(NODE)), CONFIG.profiles)
