"""A container of a workload is learned as a pod of a workload of its own would be."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import CheckpointError
from pipeline.processors.model import container_models, state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.training_batch import NodeWindow, training_batch
from pipeline.processors.recommendation import Advice, Recommendation, WorkloadSums
from pipeline.topics.samples import MAX_CONTAINERS_PER_POD
from pipeline.topics.windows import OomKill
from pipeline.topics.workloads import NO_WORKLOAD, Workload, WorkloadContainer
from tests.processors.model.test_workload_models import DAY, DB, HOUR, WEB, listed
from tests.processors.windows import GIB, Pod

MAIN = WorkloadContainer(*WEB, "main")
TWIN = Workload("shop", "Deployment", "twin")
MIB = 2.0**20
LAWS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)

Usage = tuple[float, float]


def with_containers(
    end: int,
    usage: Mapping[tuple[str, str | None], Usage] | Mapping[tuple[str, str], Usage],
    workload: Workload | None = WEB,
    node: str = "a",
) -> NodeWindow:
    """The `end`-th window of a node: what containers used, by UID of the pod and name."""
    uids = sorted({uid for uid, _ in usage})
    window = listed(end, [Pod(uid, (1.0, GIB)) for uid in uids], [workload] * len(uids), node)
    window.containers = [*usage]
    window.container_usage = np.array([*usage.values()])
    return window


def bank_of(windows: Sequence[NodeWindow]) -> Bank:
    bank = Bank(ModelConfig(expiration_seconds=1e9))
    bank.apply(windows)
    return bank


def samples(bank: Bank, container: WorkloadContainer = MAIN) -> list[int]:
    models = bank.store.containers.models
    return list(models.samples[bank.node_models["a"].containers.rows[container]].tolist())


def recommended(*banks: Bank) -> dict[Workload, Recommendation]:
    sums = WorkloadSums()
    for bank in banks:
        for node in bank.nodes:
            sums.add(node, bank.encode_state(node))
    return {each.workload: each for each in sums.recommendations()}


SAMPLES = st.lists(
    st.tuples(
        st.integers(0, 5 * DAY), st.sampled_from("pqr"), st.floats(0.5, 64),
        st.floats(GIB, 64 * GIB),
    ),
    min_size=1, max_size=15, unique_by=lambda sample: sample[:2],
)  # fmt: skip


@given(SAMPLES)
@LAWS
def test_a_container_is_learned_as_a_pod_is(
    given_samples: list[tuple[int, str, float, float]],
) -> None:
    windows, twins = [], []
    for end in sorted({sample[0] for sample in given_samples}):
        own = {uid: (cpu, memory) for at, uid, cpu, memory in given_samples if at == end}
        usage = {(uid, name): each for uid, each in own.items() for name in ("main", None)}
        windows.append(with_containers(end, usage))
        # The same samples as those of pods, with the same requests.
        pods = [Pod(uid, each, requests=(1000.0, GIB)) for uid, each in own.items()]
        twins.append(listed(end, pods, [TWIN] * len(own)))
    (main,) = recommended(bank_of(windows))[WEB].containers
    twin = recommended(bank_of(twins))[TWIN]
    assert main.name == "main"
    for one, other in ((main.cpu, twin.cpu), (main.memory, twin.memory)):
        np.testing.assert_array_equal(one, other)


def test_the_floor_of_a_pod_is_shared_by_its_containers() -> None:
    # As in TestMinResourcesSplitAcrossContainers of VPA's recommender.
    usage = {("p", name): (0.0, 1e6) for name in ("main", "mesh")}
    bank = bank_of([with_containers(end, usage) for end in range(3)])
    containers = recommended(bank)[WEB].containers
    assert [each.name for each in containers] == ["main", "mesh"]
    for each in containers:
        assert (each.cpu.target, each.memory.target) == (0.025 / 2, 250 * MIB / 2)


def test_containers_of_all_nodes_add_up() -> None:
    banks = [
        bank_of([with_containers(end, {("p", "main"): (cpu, GIB)}, node=node) for end in range(9)])
        for node, cpu in (("a", 1.0), ("b", 4.0))
    ]
    both = recommended(*banks)[WEB]
    assert both == recommended(*reversed(banks))[WEB]
    assert both.containers[0].cpu.lower < 2.0 < both.containers[0].cpu.target


def test_a_restarted_container_continues() -> None:
    # Names tell containers, not ids: the same name is the same container.
    windows = [with_containers(end, {("p", "main"): (1.0, GIB)}) for end in range(4)]
    windows.insert(2, listed(2, [Pod("p", (1.0, GIB))], [WEB]))  # while it was away
    for place, window in enumerate(windows[3:], 3):
        window.start_ms += 120_000 * (place - 2)
        window.end_ms += 120_000 * (place - 2)
    bank = bank_of(windows)
    # One peak of memory, because its 24 hours have not ended.
    assert samples(bank) == [4, 1]


def test_a_container_of_unknown_name_or_workload_teaches_nothing() -> None:
    bank = bank_of([
        with_containers(0, {("p", None): (1.0, GIB), ("p", "main"): (1.0, GIB)}),
        with_containers(1, {("q", "main"): (1.0, GIB)}, workload=None),
        with_containers(2, {("q", "main"): (1.0, GIB)}, workload=NO_WORKLOAD),
        # A known container keeps its workload while the record of its pod is missing.
        with_containers(3, {("p", "main"): (1.0, GIB)}, workload=None),
    ])  # fmt: skip
    assert [*bank.node_models["a"].containers.rows] == [MAIN]
    assert samples(bank) == [2, 1]


def test_unknown_and_invalid_usage_is_no_sample() -> None:
    bad = [(np.nan, GIB), (-1.0, np.inf), (1e9, np.nan)]
    bank = bank_of([
        with_containers(end, {("p", "main"): usage}) for end, usage in enumerate(bad)
    ])  # fmt: skip
    assert samples(bank) == [0, 1]


def test_an_only_container_has_the_amounts_of_its_pod() -> None:
    windows = [listed(end, [Pod("p", (1.0, GIB))], [WEB]) for end in range(9)]
    for window in windows:
        window.only_containers = ["web"]
    result = recommended(bank_of(windows))[WEB]
    (only,) = result.containers
    assert (only.name, only.cpu, only.memory) == ("web", result.cpu, result.memory)
    assert isinstance(only.cpu, Advice)


def test_a_container_that_a_rollout_removed_is_left_out_after_a_day() -> None:
    both = {("p", "main"): (1.0, GIB), ("p", "mesh"): (0.1, GIB)}
    windows = [with_containers(0, both)]
    windows += [with_containers(end, {("q", "main"): (1.0, GIB)}) for end in (HOUR, DAY, 2 * DAY)]
    names = [
        [each.name for each in recommended(bank_of(windows[:count]))[WEB].containers]
        for count in (1, 2, 4)
    ]
    assert names == [["main", "mesh"], ["main", "mesh"], ["main"]]


def test_a_kill_raises_the_container_that_was_killed() -> None:
    usage = {("p", "main"): (1.0, 300 * MIB), ("p", "mesh"): (0.1, 300 * MIB)}
    windows = [with_containers(end, usage) for end in range(3)]
    before = recommended(bank_of(windows))[WEB].containers
    killed_ms = windows[1].end_ms
    for window in windows[1:]:
        window.oom_kills = [OomKill(
            pod="p", killed_ms=killed_ms, request_bytes=GIB, container="main",
            container_request_bytes=600 * MIB,
        )]  # fmt: skip
    main, mesh = recommended(bank_of(windows))[WEB].containers
    # max(600 + 100 MiB, 720 MiB), in its bucket and with 15% on top.
    assert 720 * 1.15 < main.memory.target / MIB < 720 * 1.15 * 1.1
    assert mesh.memory == before[1].memory


def test_kills_of_two_containers_of_a_pod_raise_both() -> None:
    usage = {("p", "main"): (1.0, 300 * MIB), ("p", "mesh"): (0.1, 300 * MIB)}
    windows = [with_containers(end, usage) for end in range(3)]
    before = recommended(bank_of(windows))[WEB]
    for window in windows[1:]:
        window.oom_kills = [
            OomKill(pod="p", killed_ms=windows[1].end_ms - age, container=name)
            for age, name in ((1000, "mesh"), (0, "main"))
        ]
    after = recommended(bank_of(windows))[WEB]
    for old, new in zip(before.containers, after.containers, strict=True):
        assert new.memory.target > old.memory.target + 90 * MIB
    assert after.oom_kills is not None
    assert after.oom_kills.kills == 2


def test_models_survive_a_checkpoint_to_the_bit() -> None:
    windows = [
        with_containers(end, {(uid, "main"): (1.0 + end % 3, GIB), (uid, "mesh"): (0.1, GIB)})
        for uid, ends in (("p", range(30)), ("q", range(30, 50))) for end in ends
    ]  # fmt: skip
    windows[10].oom_kills = [OomKill(pod="p", killed_ms=windows[10].end_ms, container="main")]
    one, first = bank_of(windows), bank_of(windows[:40])
    second = Bank(ModelConfig(expiration_seconds=1e9))
    second.restore("a", first.encode_state("a"))
    assert second.encode_state("a") == first.encode_state("a")
    second.apply(windows[40:])
    assert second.encode_state("a") == one.encode_state("a")


def test_a_state_without_containers_is_read_as_older_releases_write_it() -> None:
    bank = bank_of([with_containers(0, {("p", "main"): (1.0, GIB)})])
    state = state_codec.decode(bank.encode_state("a"))
    old = state_codec.encode(msgspec.structs.replace(state, containers=None))
    again = Bank(ModelConfig(expiration_seconds=1e9))
    again.restore("a", old)
    assert again.node_models["a"].containers.rows == {}
    again.apply([with_containers(1, {("p", "main"): (1.0, GIB)})])
    assert samples(again) == [1, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"names": (WorkloadContainer(*DB, "x"), MAIN)},
        {"place_names": b"\1\0\0\0"},
        {"place_names": b""},
        {"peaks": b"\0"},
        {"kills": ((("x", "main"), (1, 2, 3.0, 4.0)),)},
    ],
    ids=str,
)
def test_damaged_containers_are_refused(changes: dict[str, object]) -> None:
    bank = bank_of([with_containers(0, {("p", "main"): (1.0, GIB)})])
    state = state_codec.decode(bank.encode_state("a"))
    assert state.containers is not None
    containers = msgspec.structs.replace(state.containers, **changes)
    damaged = state_codec.encode(msgspec.structs.replace(state, containers=containers))
    before = bank.encode_state("a")
    with pytest.raises(CheckpointError):
        bank.restore("a", damaged)
    with pytest.raises(CheckpointError):
        WorkloadSums().add("a", damaged)
    assert bank.encode_state("a") == before


def test_models_of_a_node_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_models, "MAX_MODELS", 3)
    bank = Bank(ModelConfig(expiration_seconds=0.0))
    for end in range(8):
        bank.apply([with_containers(end, {(f"p{end}", f"c{end}"): (1.0, GIB)})])
    own = bank.node_models["a"].containers
    assert len(own.rows) <= 4
    assert WorkloadContainer(*WEB, "c7") in own.rows
    assert bank.store.containers.dropped >= 4
    assert len(bank.store.containers.models) == len(own.rows)
    assert len(own.places) <= 2


def test_rows_are_free_again_after_eight_days_and_with_the_node() -> None:
    bank = Bank(ModelConfig(expiration_seconds=3600.0))
    bank.apply([with_containers(0, {("p", "main"): (1.0, GIB)})])
    assert len(bank.store.containers.models) == 1
    bank.apply(
        [listed(end, [Pod("q", (1.0, GIB))], [DB]) for end in range(DAY, 10 * DAY, HOUR - 1)]
    )
    assert len(bank.store.containers.models) == 0
    bank.apply([with_containers(10 * DAY, {("q", "main"): (1.0, GIB)}, workload=DB)])
    assert len(bank.store.containers.models) == 1
    bank.forget("a")
    assert len(bank.store.containers.models) == 0


def survives_checkpoints(windows: Sequence[NodeWindow], expiration_seconds: float) -> Bank:
    """Apply windows in which pods are one object until one changes, as in a worker, and restore a
    second bank after each: both have equal bits."""
    config = ModelConfig(expiration_seconds=expiration_seconds)
    bank, restored, last = Bank(config), Bank(config), None
    for each in windows:
        batch = training_batch([each])
        (head,) = batch.heads
        if last is not None and last.uids == head.pods.uids:
            batch = replace(batch, heads=[head._replace(pods=last)])
        last = batch.heads[0].pods
        bank.apply(batch)
        restored.apply(batch)
        state = restored.encode_state("a")
        assert state == bank.encode_state("a")
        restored = Bank(config)
        restored.restore("a", state)
    return bank


def test_an_only_container_is_forgotten_with_its_workload_to_the_bit() -> None:
    both = listed(0, [Pod("p", (1.0, GIB)), Pod("q", (1.0, GIB))], [WEB, DB])
    both.only_containers = ["web", "db"]
    windows = [both]
    for end in range(HOUR - 7, 9 * DAY, 6 * HOUR):  # each ends with an hour
        windows.append(listed(end, [Pod("p", (1.0, GIB))], [WEB]))
        windows[-1].only_containers = ["web"]
    bank = survives_checkpoints(windows, expiration_seconds=3600.0)
    assert bank.node_models["a"].containers.only == {WEB: "web"}


def test_containers_of_absent_pods_survive_a_checkpoint_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(container_models, "MAX_MODELS", 4)
    windows = [with_containers(0, {("p", "main"): (1.0, GIB), ("p", "mesh"): (1.0, GIB)})]
    both = {("q", "main"): (1.0, GIB), ("q", "mesh"): (1.0, GIB)}
    windows += [with_containers(end, both) for end in (1, 2, 3)]
    bank = survives_checkpoints(windows, expiration_seconds=1e9)
    assert len(bank.node_models["a"].containers.places) == 4


def test_the_name_of_an_only_container_is_that_of_the_newest_window_on_all_nodes() -> None:
    windows = [
        listed(end, [Pod("p", (1.0, GIB))], [WEB], node) for end, node in ((1, "a"), (9, "b"))
    ]
    for window, name in zip(windows, ("before", "after"), strict=True):
        window.only_containers = [name]
    banks = [bank_of([window]) for window in windows]
    for in_order in (banks, banks[::-1]):
        (only,) = recommended(*in_order)[WEB].containers
        assert only.name == "after"


def test_a_workload_has_as_many_recommended_containers_as_a_pod_may_have() -> None:
    # Else pods with ever new names of containers make a record that is too large for Kafka.
    most = MAX_CONTAINERS_PER_POD
    banks = [
        bank_of([
            with_containers(
                end, {("p", f"{end:02}-{i:02}"): (1.0, GIB) for i in range(most)}, node=node
            )
            for end in ends
        ])
        for node, ends in (("a", (1, 2)), ("b", (4,)), ("c", (3,)))
    ]  # fmt: skip
    for in_order in (banks, banks[::-1]):
        sums = WorkloadSums()
        for bank in in_order:
            (node,) = bank.nodes
            sums.add(node, bank.encode_state(node))
        assert len(sums._containers.rows) <= 2 * most
        (web,) = sums.recommendations()
        assert [each.name for each in web.containers] == [f"04-{i:02}" for i in range(most)]
        assert len(sums._containers.models) == most
