"""Whether plans may be made now: not on doubtful data, nor where the last plans did not help."""

from typing import Final, NamedTuple

from actuators.planner.hot_nodes import pool_of
from actuators.planner.relief_policy import ReliefPolicy
from pipeline.clock import Clock
from pipeline.extender.decisions import Decisions
from pipeline.extender.outage_reports import checks
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.processors.descheduling.low_node_load import NAME as LOW_NODE_LOAD
from pipeline.processors.descheduling.move_memory import MoveMemory
from pipeline.table import FeedState, Table

log = get_logger(__name__)

BLOCKED = gauge(
    "planner_blocked", "1 while nothing is planned for this reason: table, broker, usage, watcher, "
    "moves (the data is doubtful), policy, or outcome (the last plans did not help).", ["reason"],
)  # fmt: skip
PAUSED = gauge(
    "planner_paused", "1 while a strategy is paused because its last plans did not help; "
    "LowNodeLoad for any pool.", ["strategy"],
)  # fmt: skip

STALE_SECONDS: Final = 10.0
"""Evictions of this age are known, or nothing is planned. Less than `LAST_ACTION_SECONDS`."""
_REASONS: Final = ("table", "broker", "usage", "watcher", "moves", "policy", "outcome")


class Paused(NamedTuple):
    """Strategies that are paused, and pools for which LowNodeLoad is."""

    strategies: set[str]
    pools: set[str]


class PlanningGate:
    """Asked before each round. `state` is that of the feed of the table, `moves` that of the feed
    of plans and actions."""

    def __init__(
        self, table: Table, state: FeedState, moves: FeedState, decisions: Decisions,
        memory: MoveMemory, clock: Clock,
    ) -> None:  # fmt: skip
        self._table, self._state, self._moves = table, state, moves
        self._decisions, self._memory, self._clock = decisions, memory, clock
        self._reason = ""
        self._paused = Paused(set(), set())

    def reason_to_wait(self, policy: ReliefPolicy | None, now: float) -> str:
        """Why nothing may be planned, a label of `BLOCKED`; logs it once. Empty if all is well."""
        reason, text = self._doubt(now) or _objection_of(policy) or ("", "")
        if not reason and policy is not None:
            names = policy.strategies
            if self.paused(policy, now).strategies.issuperset(names):
                reason, text = "outcome", f"too few of the last plans helped: of {', '.join(names)}"
        if reason != self._reason:
            self._reason = reason
            if reason:
                log.warning("nothing is planned", reason=reason, why=text)
            else:
                log.info("planning")
        for name in _REASONS:
            BLOCKED.labels(name).set(name == reason)
        return reason

    def paused(self, policy: ReliefPolicy, now: float) -> Paused:
        """What is paused because the last plans did not help; logs each change once."""

        def pool(node: str) -> str:
            return pool_of(self._table, node)

        pools = set[str]()
        if not policy.why_not:
            pools = self._memory.paused(LOW_NODE_LOAD, now, pool)
        strategies = {name for name in policy.others_on if self._memory.paused(name, now)}
        if pools and pools.issuperset(filter(None, map(pool, self._table))):
            strategies.add(LOW_NODE_LOAD)
        for name in policy.strategies:
            is_paused = name in strategies or (name == LOW_NODE_LOAD and bool(pools))
            PAUSED.labels(name).set(is_paused)
        self._log_change(Paused(strategies, pools))
        return self._paused

    def _log_change(self, paused: Paused) -> None:
        before, self._paused = self._paused, paused
        if paused == before:
            return
        if any(paused):
            log.warning("strategies are paused: too few of their last plans helped",
                        strategies=sorted(paused.strategies - {LOW_NODE_LOAD}),
                        pools=sorted(paused.pools))  # fmt: skip
        else:
            log.info("no strategy is paused any more")

    def _doubt(self, now: float) -> tuple[str, str] | None:
        for check in checks(self._decisions.outages, self._state, now):
            if not check.ok:
                return check.name, check.text
        trouble = self._trouble_with_moves()
        return ("moves", trouble) if trouble else None

    def _trouble_with_moves(self) -> str:
        """Why plans and evictions of the last seconds may be unknown; empty if they are known."""
        moves = self._moves
        if not (moves.caught_up and moves.connected) or moves.complete_until is None:
            return f"plans and evictions are not followed: {moves.message}"
        seconds = self._clock.monotonic() - moves.complete_until
        if seconds > STALE_SECONDS:
            return f"plans and evictions of the last {seconds:.0f} s are not known"
        return ""


def _objection_of(policy: ReliefPolicy | None) -> tuple[str, str] | None:
    if policy is None:
        return "policy", "the descheduler configuration is not known yet"
    return None if policy.strategies else ("policy", policy.why_not)
