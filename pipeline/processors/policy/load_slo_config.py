"""Load the five keys of the ConfigMap about quality of service.

An invalid part changes nothing and is reported; valid parts beside it count.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from pipeline.processors.policy import slo_defaults
from pipeline.processors.policy.config_sections import Section
from pipeline.processors.policy.load_configmap import Loaded, Policy, load_section
from pipeline.processors.policy.slo_checks import HostApplications, problems_of, warnings_for
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
        key,
        defaults,
        problems_of,
        warnings_for,
        cluster="clusterStrategy",
        entries="nodeStrategies",
    )


_NO_APPLICATIONS: Final = HostApplications(applications=())

THRESHOLD: Final = _strategy("resource-threshold-config", slo_defaults.THRESHOLD)
QOS: Final = _strategy("resource-qos-config", slo_defaults.QOS)
BURST: Final = _strategy("cpu-burst-config", slo_defaults.BURST)
SYSTEM: Final = _strategy("system-config", slo_defaults.SYSTEM)
# The applications of an entry replace those of the cluster, also if the entry has none.
HOST_APPLICATIONS: Final = Section(
    "host-application-config",
    _NO_APPLICATIONS,
    problems_of,
    warnings_for,
    entry_defaults=_NO_APPLICATIONS,
)
_SECTIONS: Final[tuple[Section[Any], ...]] = (THRESHOLD, QOS, BURST, SYSTEM, HOST_APPLICATIONS)
SLO_KEYS: Final = tuple(section.key for section in _SECTIONS)
"""The keys of the ConfigMap, in the order of `SloPolicy`."""


class SloPolicy(NamedTuple):
    """The rules in force by key; None before the first valid ones."""

    threshold: Policy[ThresholdStrategy] | None = Policy(THRESHOLD.defaults)
    qos: Policy[QosStrategy] | None = Policy(QOS.defaults)
    burst: Policy[BurstStrategy] | None = Policy(BURST.defaults)
    system: Policy[SystemStrategy] | None = Policy(SYSTEM.defaults)
    host_applications: Policy[HostApplications] | None = Policy(HOST_APPLICATIONS.defaults)


NO_RULES: Final = SloPolicy(None, None, None, None, None)
"""The rules before any were read."""


def load_slo(data: Mapping[str, str] | None, last: SloPolicy = NO_RULES) -> Loaded[SloPolicy]:
    """Load each key from the data of the ConfigMap, None if there is no such object."""
    loaded = [
        load_section(section, data, before) for section, before in zip(_SECTIONS, last, strict=True)
    ]
    return Loaded(
        SloPolicy(*(section.policy for section in loaded)),
        any(section.failed for section in loaded),
        tuple(dict.fromkeys(problem for section in loaded for problem in section.problems)),
    )
