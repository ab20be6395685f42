"""Generate a KubeSchedulerConfiguration that calls the extender.

`scheduler_findings` has no finding about a generated configuration: `springtide scheduler config`
checks its own output, so that generator and checker cannot drift apart. Source: kube-scheduler's
extender API, and KEP-61 of scheduler-plugins: scores by requests must not compete with scores by
usage.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from pipeline.processors.placement.kube_config import CONFIGURATION, VERSIONS

BY_REQUESTS: Final = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")
"""The plugins of kube-scheduler that score by requests."""
VERBS: Final[Mapping[str, str]] = {
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "preemptVerb": "preempt",
}
TIMEOUT_SECONDS: Final = 1

Mode = Literal["observe", "act"]


class GeneratorOptions(NamedTuple):
    """The extender's address, mode and weight, and files on the scheduler's machine: the CA of the
    extender's certificate, and the scheduler's own certificate and key."""

    url: str
    mode: Mode = "observe"
    weight: int = 1
    scheduler_name: str = "default-scheduler"
    kubeconfig: str = "/etc/kubernetes/scheduler.conf"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


def generate_config(options: GeneratorOptions) -> dict[str, Any]:
    """A KubeSchedulerConfiguration. In mode act plugins that score by requests are disabled; in
    mode observe they stay, because the extender does not score."""
    is_https = options.url.startswith("https://")
    extender: dict[str, Any] = {"urlPrefix": options.url, **VERBS, "weight": options.weight}
    extender |= {"nodeCacheCapable": True, "ignorable": True, "httpTimeout": f"{TIMEOUT_SECONDS}s"}
    extender["enableHTTPS"] = is_https
    files = {"caFile": options.ca_file, "certFile": options.cert_file, "keyFile": options.key_file}
    if is_https:
        extender["tlsConfig"] = {key: file for key, file in files.items() if file is not None}
    profile: dict[str, Any] = {"schedulerName": options.scheduler_name}
    if options.mode == "act":
        profile["plugins"] = {"score": {"disabled": [{"name": name} for name in BY_REQUESTS]}}
    return {
        "apiVersion": VERSIONS[0],
        "kind": CONFIGURATION,
        "leaderElection": {"leaderElect": True},
        "clientConnection": {"kubeconfig": options.kubeconfig},
        "extenders": [extender],
        "profiles": [profile],
    }
