"""Credentials of a pod."""

from pathlib import Path

import pytest


def in_pod(
    monkeypatch: pytest.MonkeyPatch, token: Path, authority: Path, host: str, port: str
) -> None:
    """Run in a pod with these files of its service account."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr("pipeline.kube.api_access.TOKEN_FILE", token)
    module = "kubernetes.config.incluster_config"
    monkeypatch.setattr(f"{module}.SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(f"{module}.SERVICE_CERT_FILENAME", str(authority))
