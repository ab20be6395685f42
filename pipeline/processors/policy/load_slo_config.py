"""The keys of the ConfigMap by which nodes keep quality of service, and what they say.

Owes the rest: five sections, each loaded by itself as every other (colocation 7, 14): a part that
cannot be used changes nothing and is reported; what is good beside it counts.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from pipeline.processors.policy import slo_defaults
from pipeline.processors.policy.config_sections import Section
from pipeline.processors.policy.load_configmap import Policy, PolicyProblem, load
from pipeline.processors.policy.slo_checks import HostApplications, oddities_of, problems_of
from pipeline.processors.slo.crd_fields import Document
from pipeline.processors.slo.nodeslo import (
    BurstStrategy,
    QosStrategy,
    SystemStrategy,
    ThresholdStrategy,
)

T = TypeVar("T", bound=Document)


def _strategy(key: str, defaults: T) -> Section[T]:
    return Section(
        key, defaults, problems_of, oddities_of, cluster="clusterStrategy", entries="nodeStrategies"
    )


_NO_APPLICATIONS: Final = HostApplications(applications=())

THRESHOLD: Final = _strategy("resource-threshold-config", slo_defaults.THRESHOLD)
QOS: Final = _strategy("resource-qos-config", slo_defaults.QOS)
BURST: Final = _strategy("cpu-burst-config", slo_defaults.BURST)
SYSTEM: Final = _strategy("system-config", slo_defaults.SYSTEM)
# The applications of an entry are all that there are, also where it has none.
HOST_APPLICATIONS: Final = Section(
    "host-application-config",
    _NO_APPLICATIONS,
    problems_of,
    oddities_of,
    of_entry=_NO_APPLICATIONS,
)
SLO_KEYS: Final = tuple(one.key for one in (THRESHOLD, QOS, BURST, SYSTEM, HOST_APPLICATIONS))
"""The keys of the ConfigMap, in the order of `SloPolicy`."""


class SloPolicy(NamedTuple):
    """The rules in force by key; None while there were no usable ones of a key."""

    threshold: Policy[ThresholdStrategy] | None = Policy(THRESHOLD.defaults)
    qos: Policy[QosStrategy] | None = Policy(QOS.defaults)
    burst: Policy[BurstStrategy] | None = Policy(BURST.defaults)
    system: Policy[SystemStrategy] | None = Policy(SYSTEM.defaults)
    host_applications: Policy[HostApplications] | None = Policy(HOST_APPLICATIONS.defaults)


NO_RULES: Final = SloPolicy(None, None, None, None, None)
"""Before any were read."""


class LoadedSlo(NamedTuple):
    """The rules in force; `failed` where what a key says of the cluster is not in them."""

    policy: SloPolicy
    failed: bool
    problems: tuple[PolicyProblem, ...] = ()


def load_slo(data: Mapping[str, str] | None, last: SloPolicy = NO_RULES) -> LoadedSlo:
    """The rules after reading the data of the ConfigMap, None if there is no such object; of each
    key what `load` gives for it."""
    threshold = load(THRESHOLD, data, last.threshold)
    qos = load(QOS, data, last.qos)
    burst = load(BURST, data, last.burst)
    system = load(SYSTEM, data, last.system)
    hosts = load(HOST_APPLICATIONS, data, last.host_applications)
    problems = [p for one in (threshold, qos, burst, system, hosts) for p in one.problems]
    return LoadedSlo(
        SloPolicy(threshold.policy, qos.policy, burst.policy, system.policy, hosts.policy),
        any(one.failed for one in (threshold, qos, burst, system, hosts)),
        tuple(dict.fromkeys(problems)),
    )
