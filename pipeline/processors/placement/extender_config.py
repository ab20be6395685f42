"""The scheduler's side of an extender: a KubeSchedulerConfiguration that asks it.

Owes the rest: what kube-scheduler takes as it is, and `scheduler_findings` has nothing to say of.
Source: kube-scheduler's extender API, and KEP-61 of scheduler-plugins, by which scores of what is
asked for must not fight those of what is used.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from pipeline.processors.placement.kube_config import CONFIGURATION, VERSIONS

BY_REQUESTS: Final = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")
"""The scoring plugins of kube-scheduler that go by what is asked for."""
VERBS: Final[Mapping[str, str]] = {
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "preemptVerb": "preempt",
}
TIMEOUT_SECONDS: Final = 1

Mode = Literal["observe", "act"]


class Wanted(NamedTuple):
    """What a configuration is to say: where the extender is, whether its answers count, how much
    beside other scores, and files as the scheduler sees them: of who signed the extender's
    certificate, and of the scheduler's own where it has to show one."""

    url: str
    mode: Mode = "observe"
    weight: int = 1
    scheduler_name: str = "default-scheduler"
    kubeconfig: str = "/etc/kubernetes/scheduler.conf"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


def generated(wanted: Wanted) -> dict[str, Any]:
    """A KubeSchedulerConfiguration. In mode observe the scheduler's own scores stay as they are,
    for the extender gives none; in mode act those by requests are off."""
    is_https = wanted.url.startswith("https://")
    extender: dict[str, Any] = {"urlPrefix": wanted.url, **VERBS, "weight": wanted.weight}
    extender |= {"nodeCacheCapable": True, "ignorable": True, "httpTimeout": f"{TIMEOUT_SECONDS}s"}
    extender["enableHTTPS"] = is_https
    files = {"caFile": wanted.ca_file, "certFile": wanted.cert_file, "keyFile": wanted.key_file}
    if is_https:
        extender["tlsConfig"] = {key: file for key, file in files.items() if file is not None}
    profile: dict[str, Any] = {"schedulerName": wanted.scheduler_name}
    if wanted.mode == "act":
        profile["plugins"] = {"score": {"disabled": [{"name": name} for name in BY_REQUESTS]}}
    return {
        "apiVersion": VERSIONS[0],
        "kind": CONFIGURATION,
        "leaderElection": {"leaderElect": True},
        "clientConnection": {"kubeconfig": wanted.kubeconfig},
        "extenders": [extender],
        "profiles": [profile],
    }
