"""LowNodeLoad as Koordinator's descheduler is specified, pod by pod in plain Python.

A slow reference: it keeps upstream's weaknesses, and can do without one of them at a time, so that
a difference from it has a name.
"""

from collections.abc import Callable, Collection
from math import floor, trunc
from typing import Any, Final, NamedTuple

Amounts = dict[str, float]
Case = dict[str, Any]

HIGH_ALONE: Final = "a resource that only highThresholds names is watched"
UNKNOWN_STAYS: Final = "a pod of unknown usage stays, also without nodeFit"
BOTH_LIMITS: Final = "both limits of a target hold in both passes, with all moves so far"
BOOKED_AS_THEY_LEAVE: Final = "targets are booked for pods that leave, in their order"
FIXES: Final = (HIGH_ALONE, UNKNOWN_STAYS, BOTH_LIMITS, BOOKED_AS_THEY_LEAVE)

_CLASS: Final = {"koord-free": 0, "koord-batch": 1, "koord-mid": 2, "koord-prod": 3}
_KUBE_QOS: Final = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}
_KOORD_QOS: Final = {"BE": 0, "LS": 1, "LSR": 2, "LSE": 3, "SYSTEM": 3}
_OF_KUBE_QOS: Final = {"BestEffort": "BE", "Burstable": "LS", "Guaranteed": "LSR"}


class Thresholds(NamedTuple):
    low: Amounts
    high: Amounts
    prod_low: Amounts
    prod_high: Amounts


def evictions(case: Case, fixes: Collection[str] = ()) -> list[str]:
    """The pods that leave in one pass over one pool, in order; fits are as in vector cases."""
    return _Pass(case, fixes).run()


def _class_of(pod: Case) -> str:
    label = pod.get("priority_class")
    if label in _CLASS:
        return str(label)
    priority = pod.get("priority") or 0
    for low, name in ((9000, "prod"), (7000, "mid"), (5000, "batch"), (3000, "free")):
        if low <= priority <= low + 999:
            return f"koord-{name}"
    qos = pod.get("koord_qos") or _OF_KUBE_QOS.get(pod.get("k8s_qos", ""))
    return "koord-batch" if qos == "BE" else "koord-prod"


class _Pass:
    def __init__(self, case: Case, fixes: Collection[str]) -> None:
        self.config, self.fixes = case["config"], fixes
        self.node_fit = self.config.get("node_fit", True)
        self.pods = [
            {**pod, "usage": pod.get("usage", pod["requests"]), "class": _class_of(pod)}
            for pod in case["pods"]
        ]
        self.nodes = {node["name"]: node for node in case["nodes"]}
        self.confirmed = case.get("confirmed_hot")
        expiry = self.config.get("node_metric_expiration_seconds", 180)
        self.known = [
            name
            for name, node in self.nodes.items()
            if not node.get("no_metric") and node.get("metric_age_seconds", 0) < expiry
        ]
        self.filled = self._fill()
        self.watched = [*self.filled.low]
        self.usage = {name: self._usage(name, prod=False) for name in self.known}
        self.prod = {name: self._usage(name, prod=True) for name in self.known}
        self.limits = {name: self._limits(name) for name in self.known}
        self.gone: list[str] = []
        self.booked: dict[str, Amounts] = {}
        self.booked_prod: dict[str, Amounts] = {}

    def _fill(self) -> Thresholds:
        low, high, prod_low, prod_high = (
            dict(self.config.get(f"{kind}_thresholds") or {})
            for kind in ("low", "high", "prod_low", "prod_high")
        )
        usual = 0 if self.config.get("use_deviation_thresholds") else 100
        for name in {*low, *high, *prod_low, *prod_high, "memory"}:
            if name not in low:
                alone = HIGH_ALONE in self.fixes and name in high
                high[name] = high[name] if alone else usual
                low[name] = high[name]
            if name not in prod_low:
                prod_low[name] = prod_high[name] = usual
        return Thresholds(low, high, prod_low, prod_high)

    def _usage(self, node: str, *, prod: bool) -> Amounts:
        here = [
            pod
            for pod in self.pods
            if pod["node"] == node and (not prod or pod["class"] == "koord-prod")
        ]
        system = {} if prod else self.nodes[node].get("system_usage") or {}
        usage = {
            name: sum((pod["usage"] or {}).get(name, 0) for pod in here) + system.get(name, 0)
            for name in self.watched
        }
        return {**usage, **({"pods": len(here)} if "pods" in self.watched else {})}

    def _limits(self, node: str) -> Thresholds:
        capacity = self.nodes[node]["allocatable"]
        filled = self.filled
        if not self.config.get("use_deviation_thresholds"):
            return Thresholds(
                *({n: trunc(p * 0.01 * capacity.get(n, 0)) for n, p in part.items()}
                  for part in filled)
            )  # fmt: skip
        pairs = []
        for low, high, usage in (
            (filled.low, filled.high, self.usage),
            (filled.prod_low, filled.prod_high, self.prod),
        ):
            lower, upper = {}, {}
            for name in self.watched:
                total = capacity.get(name, 0)
                shares = [
                    usage[other][name] / self.nodes[other]["allocatable"][name] * 100
                    for other in self.known
                    if self.nodes[other]["allocatable"].get(name)
                ]
                mean = sum(shares) / len(shares) if shares else 0
                if low[name] == 0 or high[name] == 0:
                    lower[name] = upper[name] = total
                else:
                    lower[name] = trunc(min(max(mean - low[name], 0), 100) * 0.01 * total)
                    upper[name] = trunc(min(max(mean + high[name], 0), 100) * 0.01 * total)
            pairs += [lower, upper]
        return Thresholds(*pairs)

    def _over(self, usage: Amounts, limits: Amounts) -> bool:
        return any(usage[name] > limits.get(name, 0) for name in self.watched)

    def _classify(self, node: str) -> str:
        usage, prod, limits = self.usage[node], self.prod[node], self.limits[node]
        cordoned = self.nodes[node].get("unschedulable")
        prod_high = self._over(prod, limits.prod_high)
        prod_low = not cordoned and not self._over(prod, limits.prod_low)
        if not cordoned and not self._over(usage, limits.low):
            return "prod_high" if prod_high else "both_low" if prod_low else "low"
        if self._over(usage, limits.high):
            return "high"
        return "prod_high" if prod_high else "prod_low" if prod_low else "normal"

    def run(self) -> list[str]:
        classes = {name: self._classify(name) for name in self.known}

        def of(*kinds: str) -> list[str]:
            return [name for name, kind in classes.items() if kind in kinds]

        def sources(kind: str) -> list[str]:
            hot = [n for n in of(kind) if self.confirmed is None or n in self.confirmed]
            return sorted(hot, key=lambda name: -self._node_score(name))

        low = of("low", "prod_low", "both_low")
        if not (sources("high") or sources("prod_high")) or not low:
            return []
        if len(low) <= self.config.get("number_of_nodes", 0) or len(low) == len(self.nodes):
            return []
        room = self._room(of("low"), "high"), self._room(of("both_low"), "high")
        budget = {name: room[0][name] + room[1][name] for name in self.watched}
        self._evict(sources("high"), of("low", "both_low"), budget, prod=False)
        left = {name: min(room[1][name], budget[name]) for name in self.watched}
        prod_room = self._room(of("prod_low"), "prod_high")
        both = self._room(of("both_low"), "prod_high")
        budget = {n: prod_room[n] + min(both[n], left[n]) for n in self.watched}
        self._evict(sources("prod_high"), of("prod_low", "both_low"), budget, prod=True)
        return self.gone

    def _room(self, nodes: list[str], kind: str) -> Amounts:
        usage = self.prod if kind == "prod_high" else self.usage
        return {
            name: sum(getattr(self.limits[n], kind)[name] - usage[n][name] for n in nodes)
            for name in self.watched
        }

    def _weights(self) -> dict[str, int]:
        return dict.fromkeys(("cpu", "memory", *self.filled.low), 1)

    def _node_score(self, node: str) -> int:
        capacity, weights = self.nodes[node]["allocatable"], self._weights()
        parts = {
            name: min(used, capacity[name]) * 1000 // capacity[name]
            for name, used in self.usage[node].items()
            if capacity.get(name)
        }
        return floor(sum(weights[name] * p for name, p in parts.items()) / sum(weights.values()))

    def _evict(
        self, sources: list[str], targets: list[str], budget: Amounts, *, prod: bool
    ) -> None:
        if not targets:
            return
        if BOTH_LIMITS not in self.fixes:
            self.booked, self.booked_prod = {}, {}
        for node in targets:
            self.booked.setdefault(node, dict(self.usage[node]))
            self.booked_prod.setdefault(node, dict(self.prod[node]))
        booked, booked_prod = self.booked, self.booked_prod
        for source in sources:
            pods = [pod for pod in self.pods if pod["node"] == source and self._movable(pod, prod)]
            ordered = BOOKED_AS_THEY_LEAVE in self.fixes
            if self.node_fit and not ordered:
                # Upstream books candidates as they are listed, whether or not they leave.
                pods = [
                    pod for pod in pods
                    if self._fits_any(pod, targets, booked, booked_prod, prod=prod)
                ]  # fmt: skip
            usage = self.prod if prod else self.usage
            high = getattr(self.limits[source], "prod_high" if prod else "high")
            excess = {n: usage[source][n] - high[n] for n in self.watched}
            for pod in sorted(pods, key=self._order(excess)):
                if not self._over(usage[source], high):
                    break
                if any(budget[name] <= 0 for name in self.watched):
                    break
                if (
                    self.node_fit
                    and ordered
                    and not self._fits_any(pod, targets, booked, booked_prod, prod=prod)
                ):
                    continue
                self.gone.append(pod["name"])
                if pod["usage"] is None:
                    continue
                used = {**pod["usage"], "pods": 1}
                for name in self.watched:
                    budget[name] -= used.get(name, 0)
                    self.usage[source][name] -= used.get(name, 0)
                    if prod:
                        self.prod[source][name] -= used.get(name, 0)

    def _movable(self, pod: Case, prod: bool) -> bool:
        excluded = self.config.get("exclude_namespaces") or ()
        if not pod.get("evictable", True) or pod.get("namespace") in excluded:
            return False
        if UNKNOWN_STAYS in self.fixes and pod["usage"] is None:
            return False
        return not prod or pod["class"] == "koord-prod"

    def _fits_any(
        self, pod: Case, targets: list[str], booked: dict[str, Amounts],
        booked_prod: dict[str, Amounts], *, prod: bool,
    ) -> bool:  # fmt: skip
        if pod["usage"] is None:
            return False
        for name in targets:
            if not self._may_run(pod, name):
                continue
            checks = [(booked_prod if prod else booked, "prod_high" if prod else "high")]
            if BOTH_LIMITS in self.fixes:
                checks = [(booked, "high")]
                if pod["class"] == "koord-prod":
                    checks.append((booked_prod, "prod_high"))
            if all(
                usage[name][r] + pod["usage"].get(r, 0) <= getattr(self.limits[name], kind)[r]
                for usage, kind in checks
                for r in self.watched
            ):
                for usage, _ in checks:
                    for resource in self.watched:
                        usage[name][resource] += pod["usage"].get(resource, 0)
                return True
        return False

    def _may_run(self, pod: Case, name: str) -> bool:
        node = self.nodes[name]
        labels = node.get("labels") or {}
        if any(labels.get(k) != v for k, v in (pod.get("node_selector") or {}).items()):
            return False
        requested: Amounts = {}
        for other in self.pods:
            if other["node"] == name:
                for resource, amount in other["requests"].items():
                    requested[resource] = requested.get(resource, 0) + amount
        return not node.get("unschedulable") and all(
            requested.get(r, 0) + amount <= node["allocatable"].get(r, 0)
            for r, amount in pod["requests"].items()
        )

    def _order(self, excess: Amounts) -> Callable[[Case], tuple[Any, ...]]:
        weights = self._weights()

        def score(usage: Amounts) -> float:
            total = 0.0
            for name, weight in weights.items():
                if excess.get(name, 0) > 0:
                    x = usage.get(name, 0) / excess[name]
                    total += weight * (x if x < 1 else 1 + 1 / x)
            return total

        def key(pod: Case) -> tuple[Any, ...]:
            usage = pod["usage"]
            qos = pod.get("koord_qos") or _OF_KUBE_QOS.get(pod.get("k8s_qos", ""), "")
            return (
                _CLASS[pod["class"]], pod.get("priority") or 0,
                _KUBE_QOS.get(pod.get("k8s_qos", ""), 3), _KOORD_QOS.get(qos, 4),
                pod.get("deletion_cost", 0), pod.get("eviction_cost", 0),
                usage is None, -score(usage or {}), -pod.get("created_at", 0),
            )  # fmt: skip

        return key
