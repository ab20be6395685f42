"""`springtide report --metrics-server` against a fake API server that refuses."""

from pathlib import Path

import pytest

from pipeline.errors import KubernetesError
from pipeline.sources.metrics_server_watch import watch_cluster
from tests.kube.fake_server import Answer, fake, status, user_file


@pytest.mark.parametrize("script", [[status(403)], [Answer([b"{}"]), status(403)]])
async def test_a_fake_server_that_refuses_nodes_or_pods_ends_the_report_before_it_watches(
    script: list[Answer], tmp_path: Path
) -> None:
    async with fake(tmp_path, *script) as server:
        with pytest.raises(KubernetesError, match="403") as refused:
            await watch_cluster(
                user_file(tmp_path, server.url), server.clock, 600, lambda share: None
            )
        kind = ("nodes", "pods")[len(script) - 1]
        assert refused.value.hint == f"the user of the kubeconfig needs the right to list {kind}"
        assert len(server.requests) == len(script)
        assert not server.clock.slept
