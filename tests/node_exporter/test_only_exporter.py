"""One exporter measures a node, whatever sockets and ports a second one has."""

from pathlib import Path

import pytest

from node_exporter.exporter_service import run
from node_exporter.only_exporter import only_exporter_of
from pipeline.errors import UsageError
from pipeline.settings import ExporterSettings, KafkaSettings, Settings


def settings(folder: Path, prefix: str = "springtide", **exporter: object) -> Settings:
    return Settings(
        kafka=KafkaSettings(topic_prefix=prefix),
        exporter=ExporterSettings(cgroup_root=folder, **exporter),  # type: ignore[arg-type]
    )


def test_a_second_exporter_with_another_socket_is_refused(tmp_path: Path) -> None:
    with only_exporter_of(settings(tmp_path), "n1"):
        second = settings(tmp_path, socket_path=tmp_path / "other.sock", metrics_port=9199)
        refused = pytest.raises(UsageError, match="another exporter already measures node 'n1'")
        with refused, only_exporter_of(second, "n1"):
            pass
        for prefix, node in (("springtide", "n2"), ("other", "n1")):
            with only_exporter_of(settings(tmp_path, prefix), node):
                pass
    with only_exporter_of(settings(tmp_path), "n1"):
        pass


async def test_an_exporter_does_not_start_beside_another(tmp_path: Path) -> None:
    second = settings(tmp_path, node_name="n1", metrics_port=None)
    with only_exporter_of(settings(tmp_path), "n1"), pytest.raises(UsageError, match="another"):
        await run(second, {})
