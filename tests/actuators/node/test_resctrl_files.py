"""Groups of resctrl converge to the wanted ones, and are removed without a trace."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actuators.node.resctrl_files import (
    ResctrlWrite,
    carry_out,
    cgroup_tasks,
    due_writes,
    read_info,
)
from pipeline.errors import CgroupWriteError, KernelFileError
from pipeline.processors.node_qos.resctrl_groups import ResctrlGroup, ResctrlInfo
from pipeline.processors.node_qos.resctrl_schemata import Schemata, way_mask
from tests.actuators.node.fake_resctrl import FakeResctrl

IDS = frozenset({0, 8})
TASKS = {"a": {1, 2}, "b": {3}, "c": {4}}
EVERYTHING = {1, 2, 3, 4, 99}


@pytest.fixture
def fake(tmp_path: Path) -> FakeResctrl:
    return FakeResctrl(tmp_path / "resctrl", EVERYTHING)


def group(name: str, *cgroups: str, mask: int = 0xF, percent: int | None = None) -> ResctrlGroup:
    mb = {} if percent is None else dict.fromkeys(IDS, percent)
    return ResctrlGroup(name, Schemata(dict.fromkeys(IDS, mask), mb), cgroups)


def write(
    fake: FakeResctrl, *groups: ResctrlGroup, kept: Mapping[str, str] | None = None
) -> list[ResctrlWrite]:
    writes = [*due_writes(fake.root, groups, kept or {}, lambda path: TASKS.get(path, set()))]
    for each in writes:
        fake.carry_out(each)
    return writes


def cpuinfo(folder: Path, vendor: str) -> str:
    (folder / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    return str(folder)


@pytest.mark.parametrize(
    ("vendor", "name"), [("GenuineIntel", "intel"), ("AuthenticAMD", "amd"), ("Other", None)]
)
def test_what_the_machine_can_share(
    fake: FakeResctrl, tmp_path: Path, vendor: str, name: str | None
) -> None:
    info = read_info(fake.root, cpuinfo(tmp_path, vendor))
    expected = ResctrlInfo("intel", 0xFFF, 2, IDS, IDS, 5)
    assert info == (expected._replace(vendor=name) if name else None)  # type: ignore[arg-type]


def test_this_machine_without_resctrl_is_a_clean_nothing(tmp_path: Path) -> None:
    assert read_info(tmp_path, "/proc") is None


def test_a_cache_mask_with_a_hole_is_refused(fake: FakeResctrl, tmp_path: Path) -> None:
    (fake.root / "info/L3/cbm_mask").write_text("f0f\n")
    with pytest.raises(KernelFileError):
        read_info(fake.root, cpuinfo(tmp_path, "GenuineIntel"))


def test_groups_get_their_schemata_and_tasks(fake: FakeResctrl) -> None:
    groups = (group("BE", "a", percent=50), group("koordlet-x", "b", mask=0xFC0))
    assert len(write(fake, *groups)) == 9
    assert fake.lines("BE") == ["L3:0=f;8=f", "MB:0=50;8=50"]
    assert fake.lines("koordlet-x") == ["L3:0=fc0;8=fc0", "MB:0=100;8=100"]
    assert [fake.tasks(name) for name in ("BE", "koordlet-x", "")] == [{1, 2}, {3}, {4, 99}]
    assert write(fake, *groups) == []


def test_a_share_that_is_no_longer_set_goes_back_to_that_of_the_root(fake: FakeResctrl) -> None:
    write(fake, group("BE", "a", percent=50))
    write(fake, ResctrlGroup("BE", Schemata({0: 0x3}, {}), ("a",)))
    assert fake.lines("BE") == ["L3:0=3;8=fff", "MB:0=100;8=100"]


def test_tasks_of_a_pod_that_left_a_class_go_back_to_the_root(fake: FakeResctrl) -> None:
    write(fake, group("BE", "a", "b"))
    write(fake, group("BE", "a"))
    assert (fake.tasks("BE"), fake.tasks("")) == ({1, 2}, {3, 4, 99})


def test_pods_that_left_the_view_stay_in_their_groups(fake: FakeResctrl) -> None:
    write(fake, group("BE", "a", "b"), group("koordlet-x", "c"))
    kept = {"koordlet-x": "c", "koordlet-y": "b"}
    assert write(fake, group("BE", "a"), kept=kept) == []


def test_undo_leaves_no_trace(fake: FakeResctrl) -> None:
    def tree() -> dict[Path, str]:
        return {path: path.read_text() for path in fake.root.rglob("*") if path.is_file()}

    before = tree()
    write(fake, group("BE", "a", percent=20), group("LSR", "b"), group("koordlet-x", "c"))
    assert tree() != before
    write(fake)
    assert tree() == before


def test_groups_of_others_are_left_alone(fake: FakeResctrl) -> None:
    fake.carry_out(ResctrlWrite("make", fake.root / "database"))
    assert write(fake) == []


NAMES = ["BE", "LS", "LSR", "koordlet-x"]
WANTED = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(st.integers(0, 99), st.integers(1, 100), st.sets(st.sampled_from("abc"))),
)


@settings(max_examples=30, deadline=None)
@given(rounds=st.lists(WANTED, min_size=1, max_size=4))
def test_any_change_of_groups_converges(
    tmp_path_factory: pytest.TempPathFactory,
    rounds: list[dict[str, tuple[int, int, set[str]]]],
) -> None:
    fake = FakeResctrl(tmp_path_factory.mktemp("fake") / "resctrl", EVERYTHING)
    for wanted in rounds:
        taken = set[str]()
        groups = []
        for name, (start, length, cgroups) in wanted.items():
            mask = way_mask(0xFFF, start, min(start + length, 100), 2)
            groups.append(group(name, *sorted(cgroups - taken), mask=mask))
            taken |= cgroups
        write(fake, *groups)
        assert fake.groups() == ["", *sorted(wanted)]
        for each in groups:
            members = set[int]().union(*(TASKS[cgroup] for cgroup in each.cgroups))
            assert fake.tasks(each.name) == members
        assert sorted(t for name in fake.groups() for t in fake.tasks(name)) == sorted(EVERYTHING)
        assert write(fake, *groups) == []


def test_writes_are_carried_out_on_files(tmp_path: Path) -> None:
    made = tmp_path / "BE"
    carry_out(ResctrlWrite("make", made))
    carry_out(ResctrlWrite("make", made))
    for name, text in (("schemata", "L3:0=f"), ("tasks", "12")):
        (made / name).touch()
        kind = "task" if name == "tasks" else "schemata"
        carry_out(ResctrlWrite(kind, made / name, text))  # type: ignore[arg-type]
        assert (made / name).read_text().strip() == text
        (made / name).unlink()
    carry_out(ResctrlWrite("remove", made))
    carry_out(ResctrlWrite("remove", made))
    assert not made.exists()
    for write in (
        ResctrlWrite("schemata", made / "schemata", "L3:0=f"),
        ResctrlWrite("task", made / "tasks", "12"),
        ResctrlWrite("make", made / "a/b"),
    ):
        with pytest.raises(CgroupWriteError):
            carry_out(write)


def test_tasks_of_a_cgroup_are_those_of_its_containers_too(tmp_path: Path) -> None:
    for path, name, text in (("", "tasks", ""), ("x", "tasks", "1\n2\n"), ("y/z", "tasks", "3\n")):
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        (tmp_path / path / name).write_text(text)
    assert cgroup_tasks(tmp_path) == {1, 2, 3}
    # 0 is a task of another process namespace.
    (tmp_path / "x/cgroup.threads").write_text("0\n7\n")
    assert cgroup_tasks(tmp_path) == {3, 7}
    assert cgroup_tasks(tmp_path / "gone") == set()
