"""Which alerts about levels open and end."""

from collections.abc import Callable, Mapping
from functools import partial

import pytest

from pipeline.processors.descheduling.relief_alerts import ReliefAlerts, Subject
from pipeline.processors.usage_levels.hourly_usage import HourlyUsage, Means, UsageSubject
from pipeline.processors.usage_levels.level_alerts import MOST_NEW, Decision, decide
from pipeline.processors.usage_levels.level_changes import AGE_HOURS, HELD_HOURS, KEPT_HOURS
from pipeline.topics.alerts import LEVEL_RULES, CloseReason
from pipeline.topics.hourly_usage import HOUR_SECONDS

HOUR = 472_222
GIB = float(1 << 30)
POOL = UsageSubject("pool", "gold")


def workload(name: str) -> UsageSubject:
    return UsageSubject("workload", f"Deployment/shop/{name}")


def usage_of(levels: Mapping[UsageSubject, float], ago: int = HELD_HOURS) -> HourlyUsage:
    """Usage that changed by a factor of each so many hours ago, of cpu alone."""
    usage = HourlyUsage()
    for hour in range(KEPT_HOURS):
        is_new = hour >= KEPT_HOURS - ago
        means: dict[UsageSubject, Means] = {
            subject: (0.3 * (factor if is_new else 1.0), 0.5 if subject.kind == "pool" else GIB)
            for subject, factor in levels.items()
        }
        usage.put(HOUR + hour, means)
    return usage


def at(usage: HourlyUsage) -> float:
    return float((usage.newest_hour + 1) * HOUR_SECONDS)


def subjects(decision: Decision) -> list[str]:
    return [each.subject.workload or each.subject.pool for each in decision.found]


def test_an_alert_says_what_changed_when_and_what_it_means() -> None:
    usage = usage_of({POOL: 2.0, workload("web"): 0.5})
    pool, web = decide(usage, {workload("web"): "silver"}, []).found
    assert pool.subject == Subject("pool_cpu_level", "", pool="gold")
    assert pool.why.startswith("cpu usage rose from 30% to 60% of allocatable: compared with")
    assert pool.why.endswith("Peaks that were learned before are too low")
    assert web.subject == Subject("workload_cpu_level", "", workload="Deployment/shop/web")
    assert web.pool == "silver"
    assert "fell from 300m to 150m a pod" in web.why
    assert web.change is not None
    assert (web.change.before, web.change.after) == (0.3, 0.15)
    assert f"since {web.change.since}" in web.why


def test_workloads_that_change_with_their_pool_have_no_alert_of_their_own() -> None:
    names = [workload(f"w{i}") for i in range(50)]
    usage = usage_of({POOL: 2.0, **dict.fromkeys(names, 2.0), workload("down"): 0.5})
    pools = dict.fromkeys([*names, workload("down")], "gold")
    decision = decide(usage, pools, [])
    assert subjects(decision) == ["gold", "Deployment/shop/down"]
    assert decision.held_back == 50
    assert "50 of its workloads changed, too, first Deployment/shop/w0," in decision.found[0].why
    alerts = ReliefAlerts(LEVEL_RULES)
    alerts.opened(decision.found, at(usage))
    again = decide(usage, pools, alerts.open(at(usage)))
    assert (again.found, again.ended, again.held_back) == ([], {}, 50)


def test_the_number_of_new_alerts_is_bounded_and_the_largest_changes_come_first() -> None:
    usage = usage_of({workload(f"w{i:03}"): 2.0 + i / 100 for i in range(100)})
    alerts, opened = ReliefAlerts(LEVEL_RULES), list[str]()
    for turn in range(1, 6):
        decision = decide(usage, {}, alerts.open(at(usage)))
        assert len(decision.found) == MOST_NEW
        assert decision.held_back == 100 - turn * MOST_NEW
        opened += subjects(decision)
        alerts.opened(decision.found, at(usage))
    assert opened == [f"Deployment/shop/w{i:03}" for i in reversed(range(100))]
    assert decide(usage, {}, alerts.open(at(usage))) == ([], {}, 0)


def test_an_alert_ends_when_usage_is_back_or_the_new_level_is_learned() -> None:
    usage, alerts = usage_of({POOL: 2.0}), ReliefAlerts(LEVEL_RULES)
    alerts.opened(decide(usage, {}, []).found, at(usage))
    subject = Subject("pool_cpu_level", "", pool="gold")
    for level, reason, hours in ((0.3, "returned", 5), (0.6, "learned", AGE_HOURS - HELD_HOURS)):
        later = usage_of({POOL: 2.0})
        for hour in range(1, hours + 1):
            later.put(usage.newest_hour + hour, {POOL: (level, 0.5)})
            alerts.repeats(at(later))
            decision = decide(later, {}, alerts.open(at(later)))
            assert decision.found == []
            assert decision.ended == ({subject: reason} if hour == hours else {})


def test_an_alert_about_what_vanished_ends_with_its_time_alone() -> None:
    usage, alerts = usage_of({POOL: 2.0}), ReliefAlerts(LEVEL_RULES)
    alerts.opened(decide(usage, {}, []).found, at(usage))
    for hour in range(HELD_HOURS, AGE_HOURS + 1):
        alerts.repeats(at(usage))
        ended = decide(usage, {}, alerts.open(at(usage))).ended
        assert [*ended.values()] == (["learned"] if hour == AGE_HOURS else [])
        usage.put(usage.newest_hour + 1, {})


def test_nothing_is_decided_without_usage() -> None:
    assert decide(HourlyUsage(), {}, []) == ([], {}, 0)


def _reason(
    ended: Mapping[Subject, CloseReason], subject: Subject, _pool: str
) -> CloseReason | None:
    return ended.get(subject)


def replayed(levels: Mapping[UsageSubject, Callable[[int], float]], hours: int) -> list[str]:
    """The changes of alerts in so many hours, in which usage is `levels(hour)`."""
    usage, alerts, changes = HourlyUsage(), ReliefAlerts(LEVEL_RULES), list[str]()
    pools = {subject: "gold" for subject in levels if subject.kind == "workload"}
    for hour in range(-KEPT_HOURS, hours):
        usage.put(HOUR + hour, {
            subject: (level(hour), 0.5 if subject.kind == "pool" else GIB)
            for subject, level in levels.items()
        })  # fmt: skip
        if hour < 0:
            continue
        alerts.repeats(at(usage))
        decision = decide(usage, pools, alerts.open(at(usage)))
        records = alerts.closed(partial(_reason, decision.ended), at(usage))
        records += alerts.opened(decision.found, at(usage))
        changes += [f"{r.rule} {r.reason or r.transition}" for r in records]
    return changes


def _step(begin: int, hour: int) -> float:
    return 0.3 if hour < begin else 0.6


@pytest.mark.parametrize(
    "level",
    [
        lambda hour: 0.3 if hour < 0 else 0.45 if hour < 20 else 0.7,
        lambda hour: 0.3 if hour < 0 else 0.45 if hour < 12 else 0.7,
        lambda hour: 0.3 * 1.35 ** (min(max(hour, 0), 96) / 24),
    ],
    ids=["two steps", "two steps in a day", "growth of four days"],
)
def test_a_change_that_goes_on_opens_one_alert(level: Callable[[int], float]) -> None:
    changes = replayed({workload("web"): level}, 160)
    assert changes == ["workload_cpu_level opened", "workload_cpu_level learned"]


def test_workloads_of_a_pool_do_not_open_alerts_when_that_of_the_pool_ends() -> None:
    levels = {workload(f"w{i}"): partial(_step, i % 6) for i in range(25)}
    levels[POOL] = partial(_step, 0)
    assert replayed(levels, 60) == ["pool_cpu_level opened", "pool_cpu_level learned"]
