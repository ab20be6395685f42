"""`springtide doctor`: the DeschedulerConfiguration of a policy file, or of the cluster."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cli.doctor_check import Check
from pipeline.cli.doctor_policy import check_descheduling, check_kill_switch
from pipeline.errors import ForbiddenError, NotFoundError
from pipeline.settings import Settings
from pipeline.settings.worker_settings import WorkerSettings
from tests.cli.test_policy import descheduler, descheduler_map

DETECTED = "hot nodes are detected"
WHERE = "koordinator-system/koord-descheduler-config"


@pytest.mark.parametrize(
    ("document", "status", "text"),
    [
        (descheduler(), "ok", DETECTED),
        (descheduler(paused=True), "ok", "hot nodes are not detected"),
        (descheduler(foo=1), "fail", "1 not in force: profiles[0].pluginConfig[0].args.foo"),
        ({"kind": "DeschedulerPolicy"}, "fail", "kind is DeschedulerPolicy"),
        ({"kind": "Node"}, "ok", "has no DeschedulerConfiguration"),
    ],
)
def test_policy_file_is_checked(tmp_path: Path, document: Any, status: str, text: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(document))
    check = check_descheduling(Settings(worker=WorkerSettings(policy_file=file, nodes_file=file)))
    assert (check.status, text in check.found) == (status, True), check


def answer_with(monkeypatch: pytest.MonkeyPatch, expected_path: str, answer: Any) -> None:
    """Let the API server give this answer, or error, to a request for the path."""

    class Api:
        async def get(self, path: str) -> Any:
            assert path == f"/api/v1/namespaces{expected_path}"
            if isinstance(answer, Exception):
                raise answer
            return answer

    @asynccontextmanager
    async def open_api(*_: Any, **__: Any) -> AsyncIterator[Api]:
        yield Api()

    monkeypatch.setattr("pipeline.kube.api_client.open_api", open_api)


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (descheduler_map(descheduler()), "ok", f"{WHERE}; {DETECTED}"),
        (descheduler_map(yaml.safe_load("[]")), "fail", "1 not in force: "),
        ({"kind": "ConfigMap"}, "ok", f"{WHERE}; hot nodes are not detected"),
        (NotFoundError("gone"), "ok", f"{WHERE} has no DeschedulerConfiguration"),
        (ForbiddenError("no right"), "unknown", "not checked: no right"),
    ],
)
def test_config_map_of_the_cluster_is_checked(
    monkeypatch: pytest.MonkeyPatch, answer: Any, status: str, text: str
) -> None:
    answer_with(monkeypatch, "/koordinator-system/configmaps/koord-descheduler-config", answer)
    check = check_descheduling(Settings())
    assert (check.status, text in check.found) == (status, True), check


def test_kill_switch_that_is_set_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/springtide-system/configmaps/springtide-stop-evictions"
    answer_with(monkeypatch, path, {"kind": "ConfigMap"})
    name = "springtide-system/springtide-stop-evictions"
    assert check_kill_switch(Settings()) == Check(
        "kill switch", "warn", f"all evictions are stopped: the ConfigMap {name} exists",
        "kubectl delete configmap -n springtide-system springtide-stop-evictions, to let the "
        "evictor evict again",
    )  # fmt: skip
    for error in (NotFoundError("gone"), ForbiddenError("no right"), TimeoutError()):
        answer_with(monkeypatch, path, error)
        assert check_kill_switch(Settings()) is None
