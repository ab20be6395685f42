"""Records about changes of cgroup values."""

from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place
from pipeline.processors.node_qos.changes import PLACES_NAMED, Change, ChangeSummary

QUOTA = Place("kubepods/besteffort", Knob.CPU_QUOTA)
NOW = 1_700_000_000.0


def change(after: int, before: int | None = None, **more: object) -> Change:
    made = Change(QUOTA, before, after, ("cpu_suppression",), f"room {after}", "done")
    return made._replace(**more)  # type: ignore[arg-type]


def test_the_first_change_is_published_at_once_and_later_ones_once_a_minute() -> None:
    summary = ChangeSummary("a")
    summary.add([change(200_000, UNLIMITED)])
    (record,) = summary.due(NOW)
    assert (record.action, record.outcome, record.node) == ("cpu_suppression", "done", "a")
    assert record.before == {"kubepods/besteffort cpu.quota": "max"}
    assert record.after == {"kubepods/besteffort cpu.quota": "200000"}
    for second in range(1, 60):
        summary.add([change(200_000 - second, 200_001 - second)])
        assert summary.due(NOW + second) == []
    (record,) = summary.due(NOW + 60)
    assert record.before == {"kubepods/besteffort cpu.quota": "200000"}
    assert record.after == {"kubepods/besteffort cpu.quota": "199941"}
    assert record.why == "room 199941 (59 changes)"
    assert summary.due(NOW + 120) == []


def test_failures_and_features_have_records_of_their_own() -> None:
    summary = ChangeSummary("a")
    failed = change(1000, outcome="failed", error="Read-only file system")
    summary.add([change(2000), failed, change(3000, features=("cpu_burst",))])
    records = {(r.action, r.outcome): r for r in summary.due(NOW)}
    assert records.keys() == {
        ("cpu_suppression", "done"), ("cpu_suppression", "failed"), ("cpu_burst", "done")
    }  # fmt: skip
    assert records["cpu_suppression", "failed"].error == "Read-only file system"


def test_a_record_names_a_bounded_number_of_places() -> None:
    summary = ChangeSummary("a")
    places = [Place(f"kubepods/pod{i}", Knob.CPU_SHARES) for i in range(PLACES_NAMED + 5)]
    summary.add([change(2, place=place) for place in places])
    (record,) = summary.due(NOW)
    assert len(record.after) == PLACES_NAMED
    assert record.why.endswith("(25 changes; 5 more places)")


def test_a_clock_that_steps_back_delays_no_record_for_longer_than_a_minute() -> None:
    summary = ChangeSummary("a")
    summary.add([change(1)])
    summary.due(NOW)
    summary.add([change(2)])
    assert len(summary.due(NOW - 3600)) == 1


def test_the_rest_is_published_at_the_end() -> None:
    summary = ChangeSummary("a")
    summary.add([change(1)])
    summary.due(NOW)
    summary.add([change(2)])
    assert len(summary.rest(NOW + 1)) == 1
    assert summary.rest(NOW + 1) == []
