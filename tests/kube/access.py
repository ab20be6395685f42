"""Credentials of a pod, for tests."""

from pathlib import Path

import pytest


def in_pod(
    monkeypatch: pytest.MonkeyPatch, token: Path, authority: Path, host: str, port: str
) -> None:
    """As if this were a pod with these files of its service account."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr("pipeline.kube.api_access._TOKEN", token)
    here = "kubernetes.config.incluster_config"
    monkeypatch.setattr(f"{here}.SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(f"{here}.SERVICE_CERT_FILENAME", str(authority))
