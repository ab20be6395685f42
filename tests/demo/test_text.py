"""The demo's texts, and the settings of its roles."""

import asyncio
import errno
import io
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from pipeline.cli.demo import (
    PlainScreen,
    TerminalScreen,
    command,
    placement_lines,
    pod_lines,
    summary_line,
    suppression_lines,
)
from pipeline.cli.node_table import plain_text
from pipeline.errors import DemoError, UsageError
from pipeline.local.demo_queries import Answer, PodUsage, pod_usage
from pipeline.local.demo_screen import PlacementReport, PodReport, Summary, pod_reports, summarize
from pipeline.local.demo_settings import demo_home, settings_document
from pipeline.local.demo_suppression import Suppression, policy_object, threshold_percent
from pipeline.local.demo_workload import PODS
from pipeline.local.hot_node_demo import LEAST_FREE_BYTES, check_free_space, kept_logs
from pipeline.local.role_processes import without_settings
from pipeline.processors.explain.quantity_text import format_cpu
from pipeline.processors.policy.load_slo_config import load_slo
from pipeline.settings import Settings
from pipeline.settings.load import load_settings
from pipeline.table import Table
from pipeline.topics.node_state import Counters, NodeStateRecord
from pipeline.topics.predictions import PodPeaks, PredictionRecord, UsageColumns
from pipeline.topics.resource_amounts import Usage, millicores
from tests.processes import ROOT


def settings(folder: Path, *, fleet: bool, parent: str = "springtide-demo-1-2") -> Settings:
    document = settings_document(
        "127.0.0.1:1234", folder, "node-1", port=4321, cgroup_parent=parent, fleet=fleet
    )
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(document))
    return load_settings(file, {}, {})


def test_roles_listen_on_free_ports_of_loopback(tmp_path: Path) -> None:
    written = settings(tmp_path, fleet=True)
    extender, exporter, worker = written.extender, written.exporter, written.worker
    hosts = {extender.host, exporter.metrics_host, worker.metrics_host}
    ports = (exporter.metrics_port, worker.metrics_port)
    assert (hosts, ports, extender.mode) == ({"127.0.0.1"}, (0, 0), "act")
    assert (exporter.window_seconds, written.model.cold_start_seconds) == (5, 10)


def test_cpu_threshold_is_lowered_only_without_a_fleet(tmp_path: Path) -> None:
    default = Settings().extender.cpu_threshold_percent
    assert settings(tmp_path, fleet=True).extender.cpu_threshold_percent == default
    assert settings(tmp_path, fleet=False).extender.cpu_threshold_percent < default


def test_exporter_measures_the_kubelets_pods_without_demo_pods(tmp_path: Path) -> None:
    written = settings(tmp_path, fleet=False, parent="")
    assert (written.exporter.cgroup_parent, written.exporter.host_applications) == ("", ())


def test_node_actuator_changes_nothing_but_the_quota_of_the_demos_own_pods(tmp_path: Path) -> None:
    written = settings(tmp_path, fleet=False)
    section = written.node_actuator
    assert (section.mode, section.features) == ("off", {"cpu_suppression": "act"})
    assert (written.exporter.cgroup_parent, section.state_file.parent) == (
        "springtide-demo-1-2", tmp_path,
    )  # fmt: skip
    assert (section.metrics_host, section.metrics_port) == ("127.0.0.1", 0)
    without_pods = settings(tmp_path, fleet=False, parent="")
    assert without_pods.node_actuator == Settings().node_actuator
    assert without_pods.worker.policy_file is None


@pytest.mark.parametrize(("cpus", "percent"), [(1, 100), (2, 80), (8, 20), (96, 2), (1024, 1)])
def test_policy_suppresses_by_quota_at_any_number_of_cpus(cpus: int, percent: int) -> None:
    assert threshold_percent(cpus) == percent
    loaded = load_slo(policy_object(cpus)["data"])
    assert (loaded.failed, loaded.problems) == (False, ())
    assert loaded.policy.threshold is not None
    rules = loaded.policy.threshold.cluster
    assert (rules.enable, rules.cpu_suppress_policy) == (True, "cfsQuota")
    assert rules.cpu_suppress_threshold_percent == percent


async def test_pod_usage_is_the_mean_of_cpu_and_the_maximum_of_memory() -> None:
    def line(cpu: float | None, memory: int) -> bytes:
        usage = {"kind": "pod", "id": "u", "cpu_cores": cpu, "memory_bytes": memory}
        return json.dumps({"usages": [usage]}).encode() + b"\n"

    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "exporter.sock")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(line(1.0, 7) + line(None, 9) + line(2.0, 8) + b'{"collections":3}\n')
            await reader.read()  # as the exporter, which waits for another request
            writer.close()

        async with await asyncio.start_unix_server(serve, socket):
            assert await pod_usage(socket, 15) == {"u": PodUsage(1.5, 9)}


@pytest.mark.parametrize("answers", [b"", b'{"usages":[{"kind":"tier"}]}\n{"usa'])
async def test_usage_is_unknown_if_the_exporter_ends_before_or_in_its_answer(
    answers: bytes,
) -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is too long for a socket
        socket = Path(folder, "exporter.sock")
        assert await pod_usage(socket, 15) == {}

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(answers)
            writer.close()

        async with await asyncio.start_unix_server(serve, socket):
            assert await pod_usage(socket, 15) == {}


def test_directory_is_removed_if_output_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = Path(tempfile.mkdtemp())  # tmp_path is too long for a socket
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot create"), demo_home(tmp_path / "file" / "kept"):
        pass
    assert list(temporary.iterdir()) == []

    def lose(source: Path, keep: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(shutil, "copy", lose)
    with pytest.raises(DemoError, match="cannot copy"), demo_home(tmp_path / "kept") as home:
        (home / "worker.log").touch()
    # Nothing remains of a demo without output, and no parent is made for it.
    with pytest.raises(UsageError, match="cannot create"), demo_home(tmp_path / "a" / "b"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    temporary.rmdir()  # raises unless it is empty


def test_variables_with_settings_are_removed_from_the_environment() -> None:
    environment = {"PATH": "/bin", "SPRINGTIDE_KAFKA_BOOTSTRAP_SERVERS": "prod:9092"}
    assert without_settings(environment) == {"PATH": "/bin"}


def placement(**changes: object) -> PlacementReport:
    answer = Answer(["a", "b"], {"hot": "hot: cpu usage 90.0%"}, {"a": 3, "b": 7})
    base = PlacementReport(
        answer, ["a"], 0, "http://127.0.0.1:1", {"CPU": 65.0, "memory": 95.0}, []
    )
    return base._replace(**changes)  # type: ignore[arg-type]


def test_placement_lines_have_thresholds_refusals_and_scores_best_first() -> None:
    text = "\n".join(placement_lines(placement()))
    parts = ("CPU 65%, memory 95%", "lowered", "2 pass, 1 refused", "hot: cpu usage 90.0%")
    assert [part for part in parts if part not in text] == ["lowered"]
    assert text.index(" 7  b") < text.index(" 3  a")


def test_placement_lines_mention_lowered_threshold_and_late_nodes() -> None:
    late = placement(thresholds={"CPU": 25.0, "memory": 95.0}, catching_up=4)
    text = "\n".join(placement_lines(late))
    assert "lowered for this demo from 65%" in text
    assert "4 simulated nodes are still catching up" in text


def test_real_nodes_come_first_in_many_refusals_and_the_rest_is_counted() -> None:
    refused = {f"sim-{i:02}": "hot" for i in range(20)} | {"real": "hot"}
    answer = Answer([], refused, {f"n{i}": 9 - i for i in range(9)})
    lines = placement_lines(placement(answer=answer, real=["real"]))
    reasons = [line.split()[1] for line in lines if line.startswith("    refused")]
    assert (reasons[0], len(reasons)) == ("real:", 8)
    assert "    and 13 more" in lines
    assert lines[-1].split() == ["1", "n8"]


def test_unknown_usage_of_a_pod_is_a_dash() -> None:
    nothing = PodUsage(None, None)
    (_, title, row, _) = pod_lines([PodReport(PODS[4], "unknown", True, nothing, nothing)])
    assert title.startswith("POD")
    assert row.split()[:7] == ["batch-crunch", "unknown", "-", "-", "-", "cold", "-"]
    assert "0" not in row.replace("0.6 cores", "")
    assert pod_lines([]) == []


def test_suppression_lines_have_the_limit_and_both_usages() -> None:
    assert suppression_lines(Suppression(2, 0.379, 0.804, 0.376)) == [
        "node actuator: best-effort pods may use 379m of 2 CPUs",
        "  bursty-api    uses 804m",
        "  batch-crunch  uses 376m of the 600m that it wants",
    ]
    first, _, last = suppression_lines(Suppression(1, None, None, None))
    assert first == "node actuator: best-effort pods have no limit yet"
    assert last == "  batch-crunch  uses - of the 600m that it wants"
    assert suppression_lines(None) == []


def test_the_sample_in_the_readme_has_columns_and_units_of_the_demo() -> None:
    text = (ROOT / "README.md").read_text()
    (sample,) = re.findall(r"```text\n(NODE  AGE.*?)```", text, re.DOTALL)
    headers, node, *suppression, _, title, columns, row = sample.splitlines()[:9]
    assert headers.split() == plain_text([]).split()
    numbers = [int(number) for number in re.findall(r"\b(\d+)m?\b", " ".join(suppression))][:4]
    allowed, cpus, demanding, best_effort = numbers
    shown = Suppression(cpus, allowed / 1000, demanding / 1000, best_effort / 1000)
    assert suppression_lines(shown) == suppression
    nothing = PodUsage(None, None)
    expected = pod_lines([PodReport(PODS[4], "unknown", True, nothing, nothing)])
    assert (title, columns.split()) == (expected[0], expected[1].split())
    for cell in (node.split()[2], *re.split(" {2,}", row)[3:5]):
        assert format_cpu(millicores(cell) / 1000) == cell


RESULT: dict[str, object] = {
    "node": "a", "as_of": "2026-01-01T00:00:00Z", "generation": 1, "offset": 7, "epoch": 1,
}  # fmt: skip


def prediction(raw: dict[str, UsageColumns]) -> PredictionRecord:
    """A prediction for a foreign pod and two demo pods, in reverse order."""
    return PredictionRecord(
        **RESULT,  # type: ignore[arg-type]
        safety_margin_percent=10.0,
        cold_start_seconds=10.0,
        nsigma_multiplier=5.0,
        pods=PodPeaks(
            uid=["foreign", PODS[2].uid, PODS[0].uid], pod_class=["prod", "mid", "batch"],
            cold=[False, True, False], raw=raw,
        ),
    )  # fmt: skip


def test_pod_reports_have_margin_and_the_order_of_the_demo_without_foreign_pods() -> None:
    raw = UsageColumns(cpu_cores=[9.0, 2.0, None], memory_bytes=[9.0, None, 100.0])
    usage = {PODS[0].uid: PodUsage(0.5, 50.0), "foreign": PodUsage(1.0, 1.0)}
    assert pod_reports(prediction({"percentile": raw}), usage) == [
        PodReport(PODS[0], "batch", False, PodUsage(0.5, 50.0), PodUsage(None, 100.0 * 1.1)),
        PodReport(PODS[2], "mid", True, PodUsage(None, None), PodUsage(2.0 * 1.1, None)),
    ]
    assert pod_reports(prediction({}), usage) == []


def test_summary_adds_up_the_last_states() -> None:
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
    assert summarize(states, dead_letters=5, seconds=6.0) == Summary(2, 1, 1, 43, 2, 5, 6.0)
    assert summarize([], dead_letters=0, seconds=1.0) == Summary(0, 0, 0, 0, 0, 0, 1.0)


def test_summary_line_uses_singular_and_plural() -> None:
    summary = Summary(1, 0, 1, 1, 0, 2, 12.4)
    assert summary_line(summary) == (
        "12 s: 1 node, 1 with peaks, 1 window applied, 0 gaps, 2 dead letters"
    )
    assert "(20 simulated)" in summary_line(summary._replace(nodes=21, simulated=20))


@pytest.mark.parametrize("other", [("--fleet", "5"), ("--for", "30s")])
def test_a_hot_node_is_shown_without_a_fleet_and_without_an_end(other: tuple[str, str]) -> None:
    done = CliRunner().invoke(command, ["--hot-node", *other])
    assert isinstance(done.exception, UsageError)
    assert done.exception.message == f"--hot-node and {other[0]} exclude each other"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_only_a_terminal_gets_the_status_of_a_hot_node_every_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    screen = PlainScreen(has_table=False)
    for second in range(25):
        screen.show_nodes(Table(), 1000.0 + second, f"{second} s; waiting for an alert")
    output = capsys.readouterr()
    status = [f"  ({second} s; waiting for an alert)" for second in (0, 10, 20)]
    assert (output.out, output.err.splitlines()) == ("", status if is_terminal else [])


def test_lines_of_the_demo_are_broken_at_120_columns_except_for_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "22:13:21  web-node     not to spare-1: " + "a reason of several words " * 6
    PlainScreen().print(f"short\n{long}", indent=27)
    first, *others = capsys.readouterr().out.splitlines()
    assert (first, len(others)) == ("short", 2)
    assert all(len(line) <= 120 for line in others)
    assert " ".join(line.strip() for line in others) == long.strip()
    assert others[1].index(others[1].strip()) == 27
    PlainScreen().print(long, indent=None)
    assert capsys.readouterr().out == f"{long}\n"


@pytest.mark.parametrize("width", [20, 60, 200])
def test_a_terminal_of_any_width_breaks_lines_between_words(width: int) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, highlight=False, width=width)
    screen = TerminalScreen(console)
    screen.print("10:00:00  node-1     a word " + "and another one " * 20, indent=27)
    lines = output.getvalue().splitlines()
    assert all(len(line) <= max(width, 54) for line in lines)
    assert all(line.startswith(" " * 27) and line.strip()[:2] in ("an", "on") for line in lines[1:])


@pytest.mark.parametrize(
    ("simulated", "has_text"), [((), True), ((True,), False), ((True, False), False)]
)
def test_a_terminal_shows_that_no_node_is_there_only_without_any(
    simulated: tuple[bool, ...], has_text: bool
) -> None:
    table = Table()
    for number, is_simulated in enumerate(simulated):
        state = NodeStateRecord(
            node=f"node-{number}", as_of="2023-11-14T22:13:20Z", generation=1, offset=1, epoch=1,
            window_seconds=5.0, coverage=1.0, simulated=is_simulated,
        )  # fmt: skip
        assert table.put_state(state)
    output = io.StringIO()
    screen = TerminalScreen(Console(file=output, force_terminal=True, width=150, height=40))
    screen.show_nodes(table, 1_700_000_000.0, "5 s")
    screen.close()
    assert ("no node has published a window yet" in output.getvalue()) == has_text
    assert all(f"node-{number}" in output.getvalue() for number in range(len(simulated)))


def test_a_terminal_shows_the_limit_of_best_effort_pods_below_the_table() -> None:
    output = io.StringIO()
    screen = TerminalScreen(Console(file=output, force_terminal=True, width=100, height=40))
    screen.show_nodes(Table(), 1_700_000_000.0, "5 s", Suppression(2, 0.38, 0.8, 0.38))
    screen.close()
    text = output.getvalue()
    assert text.index("no node has published") < text.index("may use 380m of 2 CPUs")
    assert text.index("bursty-api    uses 800m") < text.index("5 s; Ctrl-C ends it")


def test_a_terminal_screen_breaks_no_command() -> None:
    output = io.StringIO()
    text = "springtide alerts --watch --bootstrap-servers 127.0.0.1:23766 " * 3
    TerminalScreen(Console(file=output, force_terminal=True, highlight=False, width=40)).print(
        text.strip(), indent=None
    )
    assert output.getvalue() == text.strip() + "\n"


def test_too_little_space_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(_: object) -> SimpleNamespace:
        return SimpleNamespace(free=LEAST_FREE_BYTES - 1)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(DemoError, match="has 511 MiB free; the demo needs 512") as raised:
        check_free_space()
    assert "TMPDIR" in (raised.value.hint or "")


def test_logs_of_all_parts_are_kept_after_an_error(tmp_path: Path) -> None:
    for name in ("home", "data", "plane", "keep"):
        (tmp_path / name).mkdir()
    logs = ("home/planner.log", "home/settings.yaml", "data/kafka.log", "plane/etcd.log")
    for log in logs:
        (tmp_path / log).write_text("a line")
    kafka: Any = SimpleNamespace(log_file=tmp_path / "data/kafka.log")
    plane: Any = SimpleNamespace(folder=tmp_path / "plane")
    keep = tmp_path / "keep"
    with (
        pytest.raises(DemoError, match="it ended") as raised,
        kept_logs(tmp_path / "home", kafka, plane, keep),
    ):
        raise DemoError("it ended", hint="try again")
    assert raised.value.hint == f"try again; the logs of all parts are in {keep}"
    assert {file.name for file in keep.iterdir()} == {Path(log).name for log in logs}
