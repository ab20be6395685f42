"""Profiles, and the configuration by which an API server asks a webhook on this machine."""

import base64
from pathlib import Path
from typing import Any, Final

import yaml

from pipeline.local.port_probe import HOST
from tests.cluster.objects import Object
from tests.processes import ROOT

WEBHOOK_FILES: Final = ROOT / "deploy/chart/webhook"
_CALL_SECONDS: Final = 30
"""The time-out of a call, and the longest that there is: the machine may be busy."""


def configurations(certificate: Path, port: int) -> list[Object]:
    """The objects of configurations.yaml for a webhook at this port. `certificate` is its CA."""
    authority = base64.b64encode(certificate.read_bytes()).decode()
    found = list(yaml.safe_load_all((WEBHOOK_FILES / "configurations.yaml").read_text()))
    for configuration in found:
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"].pop("service")["path"]
            address = f"https://{HOST}:{port}{path}"
            webhook["clientConfig"] = {"url": address, "caBundle": authority}
            webhook["timeoutSeconds"] = _CALL_SECONDS
    return found


def profile(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile",
        "metadata": {"name": name}, "spec": spec,
    }  # fmt: skip


def for_app(name: str, **spec: Any) -> Object:
    """A profile for the pods of an app, which has its name."""
    return profile(name, selector={"matchLabels": {"app": name}}, **spec)
