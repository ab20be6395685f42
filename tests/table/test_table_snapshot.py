"""A restored table gives the same answers, and a snapshot that does not fit is refused."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import CheckpointError
from pipeline.extender.decisions import Decisions, Rules
from pipeline.processors.placement.enabled_plugins import default_placement, read_config
from pipeline.table import Table, table_snapshot
from pipeline.table.node_columns import TableNode
from pipeline.table.table_snapshot import copied, load, save
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources, Usage
from tests.table.records import NOW, ROOM, any_pod, node_state, running

RULES = Rules(default_placement({"cpu": 65.0, "memory": 95.0}, 180.0), score_steps=100)
POSITIONS = (("springtide.nodes", 0, 5), ("springtide.pods", 1, 7))
NAMES = [f"n{number}" for number in range(6)]


def pod(uid: str, node: str, age: float, cpu: int = 700, **more: Any) -> PodRecord:
    requests = Resources(cpu_millicores=cpu, memory_bytes=1 << 28)
    return running(any_pod(uid, requests=requests, **more), node, age)


def filled(random: np.random.Generator) -> Table:
    table = Table(counting=RULES.counting)
    for name in NAMES[:5]:
        table.put_node(TableNode(node=name, allocatable=ROOM, scalars={"nvidia.com/gpu": 2}))
    for name in NAMES[:4]:
        young = {"p1": Usage(cpu_cores=0.2, memory_bytes=1e6)}
        table.put_state(node_state(name, cpu=float(random.random()), young_pods=young))
    for _ in range(60):
        uid, node = f"p{random.integers(20)}", f"n{random.integers(6)}"
        if random.random() < 0.3 and table.pods.row_of(uid) is not None:
            table.drop_pod(node, uid)
        else:
            age = float(random.choice([2.0, 20.0, 60.0, 9000.0]))
            table.put_pod(pod(uid, node, age, cgroup_uid=f"static-{uid}"[: random.integers(2, 12)]))
    table.drop_node("n4")
    return table


def answers(table: Table, now: float = NOW) -> Any:
    decisions = Decisions(table, RULES)
    asked = pod("asked", "", 0.0)
    restored = decisions.filter(asked, NAMES, now)
    scored = Decisions(table, RULES).prioritize(asked, NAMES, now)
    sums = {name: table.pods.sums[table.lookup([name])[0]].tolist() for name in NAMES}
    flight = {name: table.pods.flight[table.lookup([name])[0]].tolist() for name in NAMES}
    return (
        restored.details(len(NAMES)),
        scored.steps.tolist(),
        sums,
        flight,
        len(table),
        len(table.pods),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1))
def test_a_restored_table_gives_the_same_answers_now_and_later(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    path = tmp_path_factory.mktemp("snapshots") / "table.npz"
    table = filled(np.random.default_rng(seed))
    table.bring_up_to_date(NOW)
    assert save(path, copied(table, POSITIONS, NOW, {})) == path.stat().st_size
    restored = load(path, Table(counting=RULES.counting))
    assert restored is not None
    assert (restored.positions, restored.saved_at) == (POSITIONS, NOW)
    assert answers(restored.table) == answers(table)
    for each in (table, restored.table):
        each.put_state(node_state("n1", cpu=2.0, offset=3, age=-30.0))
        each.put_pod(pod("p1", "n2", -20.0))
        each.put_pod(pod("p30", "n5", -20.0))
        each.drop_node("n0")
    assert answers(restored.table, NOW + 40) == answers(table, NOW + 40)


def test_placed_pods_are_not_saved(tmp_path: Path) -> None:
    table = Table(counting=RULES.counting)
    table.put_state(node_state("n1"))
    table.place(pod("maybe", "", 0.0), "n1", NOW)
    save(tmp_path / "t", copied(table, POSITIONS, NOW, {}))
    restored = load(tmp_path / "t", Table(counting=RULES.counting))
    assert restored is not None
    assert (len(table.pods), len(restored.table.pods)) == (1, 0)
    assert not restored.table.pods.sums.any()


def test_a_snapshot_is_of_one_moment_while_the_table_changes(tmp_path: Path) -> None:
    """Else a place that is used again would be saved with the name of its former pod."""
    table = filled(np.random.default_rng(4))
    table.bring_up_to_date(NOW)
    copy, then = copied(table, POSITIONS, NOW, {}), answers(table)
    for name in NAMES:
        table.put_state(node_state(name, cpu=3.9, offset=9))
    for position in range(40):
        table.put_pod(pod(f"p{position}", NAMES[position % len(NAMES)], -1.0))
    assert answers(table) != then
    save(tmp_path / "t", copy)
    restored = load(tmp_path / "t", Table(counting=RULES.counting))
    assert restored is not None
    assert answers(restored.table) == then


def test_a_snapshot_of_an_older_version_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod whose record does not change is not counted again."""
    with monkeypatch.context() as before:
        before.setattr(table_snapshot, "VERSION", 2)
        save(tmp_path / "t", copied(filled(np.random.default_rng(3)), POSITIONS, NOW, {}))
    with pytest.raises(CheckpointError, match="it has version 2, not 5"):
        load(tmp_path / "t", Table(counting=RULES.counting))


def test_a_snapshot_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    table = filled(np.random.default_rng(1))
    assert load(path, Table(counting=RULES.counting)) is None
    save(path, copied(table, POSITIONS, NOW, {}))
    other = Rules(
        read_config(
            {
                "plugins": {"score": {"enabled": [{"name": "NodeResourcesFitPlus"}]}},
                "pluginConfig": [
                    {
                        "name": "NodeResourcesFitPlus",
                        "args": {"resources": {"cpu": {"type": "MostAllocated"}}},
                    }
                ],
            }
        )
    )
    factors = {"cpu": 50, "memory": 70}
    half = msgspec.structs.replace(RULES.placement.load_aware, estimated_scaling_factors=factors)
    for counting in (other.counting, RULES.counting._replace(load_aware=half)):
        with pytest.raises(CheckpointError, match="written with other plugins or arguments"):
            load(path, Table(counting=counting))
    whole = path.read_bytes()
    random = np.random.default_rng(2)
    for _ in range(60):
        data = bytearray(whole)
        if random.random() < 0.5:
            del data[random.integers(len(data)) :]
        for _ in range(5):
            data[random.integers(len(data)) % max(len(data), 1)] ^= 0xFF
        path.write_bytes(bytes(data))
        empty = Table(counting=RULES.counting)
        try:
            restored = load(path, empty)
        except CheckpointError as error:
            assert "it is " in error.message
        else:
            assert restored is not None
            assert len(restored.table) <= 6
    assert [each.name for each in path.parent.iterdir()] == ["table.npz"]


def test_a_damaged_archive_directory_is_refused(tmp_path: Path) -> None:
    """The directory also declares compression, so its damage raises other errors."""
    path = tmp_path / "table.npz"
    save(path, copied(filled(np.random.default_rng(1)), POSITIONS, NOW, {}))
    whole = path.read_bytes()
    messages = set()
    for position in range(whole.index(b"PK\x01\x02"), len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        # A position before the file's beginning is an OSError, which the feed reports.
        with suppress(OSError):
            try:
                load(path, Table(counting=RULES.counting))
            except CheckpointError as error:
                messages.add(error.message.split(":")[0])
    assert messages == {"it is damaged"}
