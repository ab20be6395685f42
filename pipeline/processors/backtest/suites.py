"""Suites: which scenario and resource of a data set is judged, how far ahead, and from when on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from pipeline.errors import UsageError
from pipeline.processors.arrays import IntArray
from pipeline.processors.backtest.protocol import scored_steps
from pipeline.processors.backtest.trace import Trace

Horizon = Annotated[float, Meta(gt=0, le=8784)]
BurnIn = Annotated[float, Meta(ge=0, le=8784)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
_HOUR: Final = 3600
_DAY: Final = 24
LONG_HOURS: Final = 21 * _DAY
"""A trace of three weeks is long enough to learn for a week, and to hold rates against risks."""


class Suite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One judgement: predictions of `resource` in `scenario` of `dataset` for `horizon_hours`.

    Every `stride_steps` a prediction is scored, from `burn_in_hours` on. Savings are averaged
    within each `origin` first, so that a source with many suites does not outweigh the others.
    """

    name: Name
    dataset: Name
    scenario: Name = "std"
    resource: Literal["cpu", "memory"] = "cpu"
    horizon_hours: Horizon = 24.0
    burn_in_hours: BurnIn = 168.0
    stride_steps: Annotated[int, Meta(ge=1, le=1_000_000)] = 12
    origin: str = ""

    @property
    def source(self) -> str:
        """The origin, by default that of the data set."""
        return self.origin or origin_of(self.dataset)

    def horizon_steps(self, trace: Trace) -> int:
        """Steps of the horizon, at least one."""
        return max(round(self.horizon_hours * _HOUR / trace.step_seconds), 1)

    def at(self, trace: Trace) -> IntArray:
        """The steps of scored predictions."""
        burn_in = round(self.burn_in_hours * _HOUR / trace.step_seconds)
        return scored_steps(trace.steps, self.horizon_steps(trace), burn_in, self.stride_steps)


def origin_of(dataset: str) -> str:
    """The part of the name of a data set before the first underscore."""
    return dataset.partition("_")[0]


def _suite(name: str, dataset: str, scenario: str, resource: str, *numbers: int) -> Suite:
    horizon, burn_in, stride = numbers
    kind: Literal["cpu", "memory"] = "memory" if resource == "memory" else "cpu"
    return Suite(
        name=name, dataset=dataset, scenario=scenario, resource=kind,
        horizon_hours=horizon, burn_in_hours=burn_in, stride_steps=stride,
    )  # fmt: skip


PUBLIC: Final = (
    _suite("bitbrains-cpu-24h", "bitbrains_rnd", "std", "cpu", 24, 168, 12),
    _suite("bitbrains-mem-24h", "bitbrains_rnd", "std", "memory", 24, 168, 12),
    _suite("bitbrains-dense-cpu-24h", "bitbrains_rnd", "dense", "cpu", 24, 168, 12),
    _suite("bitbrains-static-cpu-24h", "bitbrains_rnd", "static", "cpu", 24, 168, 12),
    _suite("bitbrains-cpu-3h", "bitbrains_rnd", "std", "cpu", 3, 168, 12),
    _suite("bitbrains-fast-cpu-24h", "bitbrains_fast", "std", "cpu", 24, 168, 12),
    _suite("google-cpu-24h", "google_jobs", "std", "cpu", 24, 72, 6),
    _suite("google-mem-24h", "google_jobs", "std", "memory", 24, 72, 6),
    _suite("planetlab-cpu-3h", "planetlab_24h", "std", "cpu", 3, 6, 3),
)
"""Suites of public traces, by which published numbers of predictors were computed."""


def usual_suites(trace: Trace) -> list[Suite]:
    """The suites of a trace without options, of the resources that it has: those of `PUBLIC` for
    its data set, or else one for each resource and the horizons that its length allows."""
    public = [suite for suite in PUBLIC if suite.dataset == trace.dataset]
    if public:
        own = [suite for suite in public if suite.scenario == trace.scenario]
        return [suite for suite in own if suite.resource in trace.resources]
    horizons, burn_in, stride = _numbers(trace)
    return [
        named(trace, resource, horizon, burn_in, stride)
        for resource in trace.resources
        for horizon in horizons
    ]


def _numbers(trace: Trace) -> tuple[Sequence[float], float, int]:
    """Horizons and burn-in in hours, and the stride in steps, that a trace is long enough for.

    A day ahead after a week of learning, where three weeks are there; less of all where not.
    """
    per_hour = _HOUR / trace.step_seconds
    hourly, half_hourly, quarter_hourly = (max(round(per_hour / n), 1) for n in (1, 2, 4))
    if trace.hours >= LONG_HOURS:
        return (24.0, 3.0), 168.0, hourly
    if trace.hours > 5 * _DAY:
        return (24.0,), 72.0, half_hourly
    if trace.hours >= 2 * _DAY:
        return (6.0,), 24.0, quarter_hourly
    return (trace.hours / 8,), trace.hours / 4, quarter_hourly


def named(
    trace: Trace, resource: str, horizon_hours: float, burn_in_hours: float, stride_steps: int
) -> Suite:
    """A suite called by its data set, scenario, resource and horizon."""
    short = {"memory": "mem"}.get(resource, resource)
    name = f"{trace.dataset}-{trace.scenario}-{short}-{horizon_hours:g}h"
    kind: Literal["cpu", "memory"] = "memory" if resource == "memory" else "cpu"
    return Suite(
        name=name, dataset=trace.dataset, scenario=trace.scenario, resource=kind,
        horizon_hours=horizon_hours, burn_in_hours=burn_in_hours, stride_steps=stride_steps,
    )  # fmt: skip


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What options of the command select; None: as usual."""

    scenarios: Collection[str] = ()
    resources: Collection[str] = ()
    horizon_hours: Sequence[float] = ()
    burn_in_hours: float | None = None
    stride_seconds: float | None = None


def selected_suites(trace: Trace, selection: Selection) -> list[Suite]:
    """The suites of a trace that the options select. A horizon, burn-in or stride replaces that of
    the usual suites, for every resource.

    Raises `UsageError` for a horizon that is shorter than a step.
    """
    if selection.scenarios and trace.scenario not in selection.scenarios:
        return []
    shortest = trace.step_seconds / _HOUR
    if any(hours < shortest * (1 - 1e-9) for hours in selection.horizon_hours):
        raise UsageError(
            f"a horizon is shorter than a step of {trace.dataset}",
            hint=f"{trace.step_seconds} s is the shortest",
        )
    suites = usual_suites(trace)
    changes = (selection.burn_in_hours, selection.stride_seconds)
    if selection.horizon_hours or any(change is not None for change in changes):
        horizons, burn_in, stride = _numbers(trace)
        if selection.burn_in_hours is not None:
            burn_in = selection.burn_in_hours
        if selection.stride_seconds is not None:
            stride = max(round(selection.stride_seconds / trace.step_seconds), 1)
        suites = [
            named(trace, resource, horizon, burn_in, stride)
            for resource in trace.resources
            for horizon in dict.fromkeys(selection.horizon_hours or horizons)
        ]
    return [
        suite
        for suite in suites
        if not selection.resources or suite.resource in selection.resources
    ]


def check_suites(suites: Iterable[Suite]) -> None:
    """Raise `UsageError` if two suites have one name."""
    names: set[str] = set()
    for suite in suites:
        if suite.name in names:
            raise UsageError(
                f"two suites are called {suite.name!r:.100}",
                hint="give each suite, and each data set and scenario, its own name",
            )
        names.add(suite.name)
