"""Saved values survive any end of the process, and nothing that is not ours is believed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.node.original_values import MOST_BYTES, MOST_PLACES, OriginalValues, SavedValue
from pipeline.errors import KernelFileError, StateError
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, cpu_list_text
from tests.processes import ROOT, environment

QUOTA, CPUS = Place("be/pod", Knob.CPU_QUOTA), Place("be", Knob.CPUSET)
VALUES = {
    QUOTA: SavedValue("-1 100000", ("cpu_burst", "suppression"), 50_000),
    CPUS: SavedValue("0-3", ("suppression",), frozenset({1, 2})),
    Place("", Knob.IO_READ_BPS, "8:16"): SavedValue("0"),
    Place("be", Knob.MEMORY_LIMIT): SavedValue("409600", ("batch",), UNLIMITED),
    Place("", Knob.NODE_SCHED_FEATURE, "WAKEUP_PREEMPTION"): SavedValue("WAKEUP_PREEMPTION"),
    Place("host-best-effort/büro", Knob.CPUSET): SavedValue(
        cpu_list_text(frozenset(range(0, 8192, 2))), ("share_pool",), frozenset(range(1, 8192, 2))
    ),
}


def accept(place: Place, text: str) -> None:
    """A parser for which all texts are right."""


def opened(path: Path, boot_id: str = "boot") -> OriginalValues:
    return OriginalValues(path, boot_id, accept)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "state.json"


@pytest.fixture
def saved(path: Path) -> Path:
    originals = opened(path)
    originals.replace(VALUES)
    originals.close()
    return path


def test_a_successor_has_what_was_saved(saved: Path) -> None:
    originals = opened(saved)
    assert (originals.values, originals.lost_because) == (VALUES, None)
    originals.replace({QUOTA: VALUES[QUOTA]})
    originals.close()
    originals = opened(saved)
    assert originals.values == {QUOTA: VALUES[QUOTA]}
    assert saved.stat().st_mode & 0o777 == 0o600
    originals.close()


def test_no_file_is_left_when_nothing_is_to_be_restored(saved: Path) -> None:
    originals = opened(saved)
    originals.replace({})
    assert sorted(file.name for file in saved.parent.iterdir()) == ["state.json.lock"]
    originals.close()


def test_one_process_at_a_time_has_them(saved: Path) -> None:
    originals = opened(saved)
    with pytest.raises(StateError, match="another node actuator"):
        opened(saved)
    originals.close()
    opened(saved).close()


def test_values_of_an_earlier_boot_are_dropped(saved: Path) -> None:
    originals = opened(saved, "another boot")
    assert (originals.values, originals.lost_because) == ({}, None)
    assert not saved.exists()
    originals.close()


def test_a_directory_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"^node_actuator\.state_file: .*directory"):
        opened(tmp_path / "file" / "state.json")


def changed(**changes: object) -> Callable[[Path], None]:
    """The saved file with other fields in its first place."""

    def change(path: Path) -> None:
        document = json.loads(path.read_text())
        document["places"][0] |= changes
        path.write_text(json.dumps(document))

    return change


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(b"\xff" * 100),
        lambda path: path.write_text('{"format": 0, "boot_id": "boot", "places": []}'),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_bytes(b" " * (MOST_BYTES + 1)),
        lambda path: path.chmod(0o666),
        lambda path: os.chown(path, 1234, 0),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to("/etc/hostname")),
        as_pipe,
        changed(path="../../etc"), changed(path="/etc"), changed(path="be//pod"),
        changed(knob=1), changed(device="8:16 rbps=max"), changed(device="sda"),
        changed(original="1\n2"), changed(original="9" * 70_000), changed(original=None),
        changed(features=["x" * 70_000]), changed(features=["x"] * 101), changed(claimed="0-3"),
        changed(claimed=1.5), changed(claimed=10**30),
    ],
)  # fmt: skip
def test_a_file_that_is_not_ours_is_set_aside_and_said_so(
    saved: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    damage(saved)
    originals = opened(saved)
    assert originals.values == {}
    assert originals.lost_because
    assert "what was written before cannot be restored" in caplog.text
    assert os.path.lexists(saved.with_name("state.json.unreadable"))
    reason = originals.lost_because
    for values in ({}, VALUES, {}):
        originals.replace(values)
        originals.close()
        originals = opened(saved)
        assert (originals.values, originals.lost_because) == (values, reason)
    originals.close()
    originals = opened(saved, "another boot")
    assert (originals.values, originals.lost_because) == ({}, None)
    originals.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path: path.write_text('{"format": 2, "boot_id": "boot"}'), "it has format 2"),
        (changed(knob="cpu.unknown"), "cpu.unknown"),
        (changed(more=1), "unknown field `more`"),
    ],
)
def test_values_of_a_newer_release_are_left_to_it(
    saved: Path, change: Callable[[Path], object], why: str
) -> None:
    change(saved)
    before = saved.read_bytes()
    for _ in range(2):
        with pytest.raises(StateError, match=f"newer release saved .*{why}.*--undo"):
            opened(saved)
    assert saved.read_bytes() == before
    originals = opened(saved, "another boot")
    assert (originals.values, originals.lost_because) == ({}, None)
    originals.close()


def test_a_text_that_the_kernel_does_not_have_is_not_believed(saved: Path) -> None:
    def refuse(place: Place, text: str) -> None:
        if place.knob is Knob.CPUSET:
            raise KernelFileError("not a range", path=str(place))

    originals = OriginalValues(saved, "boot", refuse)
    assert originals.values == {}
    assert "not a range" in str(originals.lost_because)
    originals.close()


def test_what_was_saved_stays_if_saving_fails(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    originals, before = opened(saved), saved.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        originals.replace({QUOTA: SavedValue("1000 100000")})
    assert (originals.values, saved.read_bytes()) == (VALUES, before)
    assert sorted(file.name for file in saved.parent.iterdir()) == ["state.json", "state.json.lock"]
    originals.close()


def test_more_places_than_the_bound_are_not_saved(saved: Path) -> None:
    originals = opened(saved)
    many = {Place(f"pod{i}", Knob.CPU_QUOTA): SavedValue("") for i in range(MOST_PLACES + 1)}
    with pytest.raises(StateError, match="more than"):
        originals.replace(many)
    assert originals.values == VALUES
    originals.close()


TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
SAVED = st.builds(
    SavedValue,
    TEXTS,
    st.lists(st.sampled_from(["a", "b"]), unique=True).map(tuple),
    st.none() | st.integers(-1, UNLIMITED),
    st.lists(TEXTS, max_size=3).map(tuple),
)


@given(st.dictionaries(st.sampled_from([f"kubepods/pod{i}" for i in range(9)]), SAVED))
def test_any_values_are_read_as_they_were_saved(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, SavedValue]
) -> None:
    path = tmp_path_factory.mktemp("run") / "state.json"
    places = {Place(name, Knob.CPU_QUOTA): saved for name, saved in values.items()}
    originals = opened(path)
    originals.replace(places)
    originals.close()
    originals = opened(path)
    assert (originals.values, originals.lost_because) == (places, None)
    originals.close()


WRITER = """
import sys
from pathlib import Path
from tests.actuators.node.test_original_values import QUOTA, SavedValue, opened

originals = opened(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(10**9):
    originals.replace({QUOTA: SavedValue("x" * (number % 4000), claimed=number % 4000)})
"""


def test_a_process_that_is_killed_while_it_saves_leaves_the_last_or_the_next(
    saved: Path,
) -> None:
    for kill_after_seconds in (0.0, 0.003, 0.01, 0.03):
        command = [sys.executable, "-c", WRITER, str(saved)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment(), cwd=ROOT
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(kill_after_seconds)
            process.kill()
        originals = opened(saved)
        assert originals.lost_because is None
        assert originals.values == VALUES or all(
            len(value.text) == value.claimed for value in originals.values.values()
        )
        originals.close()
