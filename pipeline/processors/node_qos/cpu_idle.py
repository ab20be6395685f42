"""Run best-effort work only on CPUs that nothing else wants, by the kernel's idle class."""

from collections.abc import Mapping
from typing import Final

from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value
from pipeline.processors.node_qos.claims import Claim, held
from pipeline.processors.node_qos.node_state import NodeState

_NAME: Final = "cpu_idle"


class CpuIdle:
    """Koordinator's `schedIdle`, which belongs to the CPU policy `coreSched`.

    The directory BestEffort becomes idle as a whole: its pods share what is left by their weights.
    Best-effort host applications in another directory become idle on their own.
    """

    name = _NAME
    reads_usage: Final = False

    def claims(self, state: NodeState, former: Mapping[Place, Value]) -> list[Claim]:
        """`cpu.idle` of the directory and of host applications; empty if it is switched off."""
        if state.slo is None:
            return held(former, _NAME)
        strategy = state.slo.resource_qos_strategy
        if strategy is None or strategy.policies is None or strategy.be_class is None:
            return []
        cpu = strategy.be_class.cpu_qos
        if strategy.policies.cpu_policy != "coreSched" or cpu is None:
            return []
        if not cpu.enable or not cpu.sched_idle:
            return []
        apps = [a.path for a in state.host_apps if a.qos == "BE" and not a.in_best_effort]
        return [
            Claim(Place(path, Knob.CPU_IDLE), 1, _NAME, "schedIdle of the class BE")
            for path in (state.best_effort_path, *apps)
        ]
