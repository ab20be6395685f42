"""Scales of custom controllers, of the real API server and with the rights of the evictor."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actuators.eviction.scales import Scale, ScaleReader
from pipeline.clock import SystemClock
from pipeline.kube.api_client import Api, open_api
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KubernetesSettings
from tests.cluster.objects import apply, service_account

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(600)]
GROUP, VERSION = "apps.kruise.io", "v1alpha1"


def definition(kind: str, plural: str, *, has_scale: bool) -> dict[str, Any]:
    paths = {
        "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.labelSelector",
    }  # fmt: skip
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{
                "name": VERSION, "served": True, "storage": True,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}} | ({"scale": paths} if has_scale else {}),
            }],
        },
    }  # fmt: skip


def custom(kind: str, replicas: int) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{VERSION}", "kind": kind,
        "metadata": {"name": "web", "namespace": "default"}, "spec": {"replicas": replicas},
    }  # fmt: skip


@pytest.fixture
async def evictor(plane: ControlPlane) -> AsyncIterator[Api]:
    project = Path(__file__).parents[2]
    settings = KubernetesSettings(kubeconfig=service_account(plane, "evictor", project))
    async with open_api(settings, SystemClock()) as api:
        yield api


async def test_the_evictor_reads_the_scales_that_its_role_names(
    plane: ControlPlane, evictor: Api
) -> None:
    definitions = [
        definition("CloneSet", "clonesets", has_scale=True),
        definition("BroadcastJob", "broadcastjobs", has_scale=False),
        definition("SidecarSet", "sidecarsets", has_scale=True),
    ]
    apply(plane, *definitions)
    names = [each["metadata"]["name"] for each in definitions]
    try:
        crds = [f"crd/{name}" for name in names]
        plane.kubectl("wait", "--for=condition=Established", *crds, "--timeout=60s")
        apply(plane, *(custom(kind, 4) for kind in ("CloneSet", "BroadcastJob", "SidecarSet")))
        patch = '{"status": {"replicas": 4, "labelSelector": "app=web,tier in (a,b)"}}'
        for plural in ("clonesets", "sidecarsets"):
            where = f"{plural}.{GROUP}"
            plane.kubectl(
                "patch", where, "web", "--subresource=status", "--type=merge", "-p", patch
            )
        reader, version = ScaleReader(evictor), f"{GROUP}/{VERSION}"
        assert await reader.read("default", version, "CloneSet", "web") == Scale(
            4, "app=web,tier in (a,b)"
        )
        assert await reader.read("default", version, "CloneSet", "absent") is None
        assert await reader.read("default", version, "BroadcastJob", "web") is None
        # The role does not name the scale of SidecarSets.
        assert await reader.read("default", version, "SidecarSet", "web") is None
        assert await reader.read("default", "nobody.example/v1", "CloneSet", "web") is None
    finally:
        plane.kubectl("delete", "crd", *names)
