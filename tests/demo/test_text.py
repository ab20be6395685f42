"""What the demo shows and says, and which settings it gives to the roles."""

from pathlib import Path

import yaml

from pipeline.cli.demo import answer_lines, pod_lines, summary_line
from pipeline.local.demo_queries import Answer, PodUsage
from pipeline.local.demo_screen import Asked, PodLine, Summary, pods_shown, summary_of
from pipeline.local.demo_stage import settings_document
from pipeline.local.demo_workload import PODS
from pipeline.local.role_processes import without_settings
from pipeline.settings import Settings
from pipeline.settings.load import load_settings
from pipeline.topics.node_state import Counters, NodeStateRecord
from pipeline.topics.predictions import PodPeaks, PredictionRecord, UsageColumns
from pipeline.topics.resource_amounts import Usage


def settings(folder: Path, *, fleet: bool, parent: str = "springtide-demo-1-2") -> Settings:
    document = settings_document(
        "127.0.0.1:1234", folder, "node-1", port=4321, cgroup_parent=parent, fleet=fleet
    )
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(document))
    return load_settings(file, {}, {})


def test_everything_is_on_loopback_and_on_free_ports(tmp_path: Path) -> None:
    found = settings(tmp_path, fleet=True)
    hosts = {found.extender.host, found.exporter.metrics_host, found.worker.metrics_host}
    assert hosts == {"127.0.0.1"}
    assert (found.exporter.metrics_port, found.worker.metrics_port) == (0, 0)
    assert found.extender.mode == "act"
    assert (found.exporter.window_seconds, found.model.cold_start_seconds) == (5, 10)


def test_thresholds_are_the_usual_ones_with_a_fleet_and_lowered_without(tmp_path: Path) -> None:
    usual = Settings().extender.cpu_threshold_percent
    assert settings(tmp_path, fleet=True).extender.cpu_threshold_percent == usual
    assert settings(tmp_path, fleet=False).extender.cpu_threshold_percent < usual


def test_without_cgroups_of_its_own_it_looks_for_a_kubelets(tmp_path: Path) -> None:
    found = settings(tmp_path, fleet=False, parent="")
    assert found.exporter.cgroup_parent == ""
    assert found.exporter.host_applications == ()


def test_settings_of_the_environment_do_not_reach_the_roles() -> None:
    environment = {"PATH": "/bin", "SPRINGTIDE_KAFKA_BOOTSTRAP_SERVERS": "prod:9092"}
    assert without_settings(environment) == {"PATH": "/bin"}


def asked(**changes: object) -> Asked:
    answer = Answer(["a", "b"], {"hot": "hot: cpu usage 90.0%"}, {"a": 3, "b": 7})
    base = Asked(answer, ["a"], 0, "http://127.0.0.1:1", {"CPU": 65.0, "memory": 95.0}, [])
    return base._replace(**changes)  # type: ignore[arg-type]


def test_answer_names_thresholds_refusals_and_scores_best_first() -> None:
    text = "\n".join(answer_lines(asked()))
    assert "CPU 65 %, memory 95 %" in text
    assert "lowered" not in text
    assert "2 pass, 1 refused" in text
    assert "hot: cpu usage 90.0%" in text
    assert text.index(" 7  b") < text.index(" 3  a")


def test_lowered_threshold_and_late_nodes_are_said() -> None:
    text = "\n".join(answer_lines(asked(thresholds={"CPU": 25.0, "memory": 95.0}, late=4)))
    assert "lowered for this demo from 65 %" in text
    assert "4 simulated nodes are still on their way" in text


def test_of_many_refusals_the_real_node_comes_first_and_the_rest_is_counted() -> None:
    refused = {f"sim-{i:02}": f"sim-{i:02}: hot" for i in range(20)} | {"real": "real: hot"}
    answer = Answer([], refused, {f"n{i}": 9 - i for i in range(9)})
    found = answer_lines(asked(answer=answer, real=["real"]))
    reasons = [line.split()[1] for line in found if line.startswith("    refused")]
    assert reasons[0] == "real:"
    assert len(reasons) == 8
    assert "    and 13 more" in found
    assert found[-1].split() == ["1", "n8"]


def test_unknown_is_a_dash_and_never_zero() -> None:
    nothing = PodUsage(None, None)
    (_, title, row, _) = pod_lines([PodLine(PODS[4], "unknown", True, nothing, nothing)])
    assert title.startswith("POD")
    assert row.split()[:7] == ["batch-crunch", "unknown", "-", "-", "-", "cold", "-"]
    assert "0" not in row.replace("0.2 cores", "")
    assert pod_lines([]) == []


RESULT: dict[str, object] = {
    "node": "a", "as_of": "2026-01-01T00:00:00Z", "generation": 1, "offset": 7, "epoch": 1,
}  # fmt: skip


def prediction(raw: dict[str, UsageColumns]) -> PredictionRecord:
    """Of a stranger's pod and two of the demo's, the later one first."""
    return PredictionRecord(
        **RESULT,  # type: ignore[arg-type]
        safety_margin_percent=10.0,
        cold_start_seconds=10.0,
        nsigma_multiplier=5.0,
        pods=PodPeaks(
            uid=["stranger", PODS[2].uid, PODS[0].uid],
            pod_class=["prod", "mid", "batch"],
            cold=[False, True, False],
            raw=raw,
        ),
    )


def test_pods_are_shown_with_margin_in_their_own_order_and_strangers_are_not() -> None:
    raw = UsageColumns(cpu_cores=[9.0, 2.0, None], memory_bytes=[9.0, None, 100.0])
    usage = {PODS[0].uid: PodUsage(0.5, 50.0), "stranger": PodUsage(1.0, 1.0)}
    assert pods_shown(prediction({"percentile": raw}), usage) == [
        PodLine(PODS[0], "batch", False, PodUsage(0.5, 50.0), PodUsage(None, 100.0 * 1.1)),
        PodLine(PODS[2], "mid", True, PodUsage(None, None), PodUsage(2.0 * 1.1, None)),
    ]
    assert pods_shown(prediction({}), usage) == []


def test_summary_is_that_of_the_last_states() -> None:
    states = [
        NodeStateRecord(
            **RESULT,  # type: ignore[arg-type]
            window_seconds=5.0,
            coverage=1.0,
            simulated=simulated,
            peaks=peaks,
            counters=Counters(applied=applied, gaps=1),
        )
        for simulated, peaks, applied in ((False, {"percentile": Usage()}, 3), (True, {}, 40))
    ]
    assert summary_of(states, dead_letters=5, seconds=6.0) == Summary(2, 1, 1, 43, 2, 5, 6.0)
    assert summary_of([], dead_letters=0, seconds=1.0) == Summary(0, 0, 0, 0, 0, 0, 1.0)


def test_summary_counts_as_people_do() -> None:
    summary = Summary(1, 0, 1, 1, 0, 2, 12.4)
    assert summary_line(summary) == (
        "12 s: 1 node, 1 with peaks, 1 window applied, 0 gaps, 2 dead letters"
    )
    assert "(20 simulated)" in summary_line(summary._replace(nodes=21, simulated=20))
