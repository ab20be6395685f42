"""`springtide provider` as a command: what it says without any source, broker or cluster."""

import re
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline.cli import provider
from pipeline.cli.main import cli
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage
from pipeline.processors.imported_usage.promql import DEFAULT_QUERIES
from pipeline.sources.provider.registry import SOURCES


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["provider", *arguments])


def test_kind_stream_has_nothing_to_import() -> None:
    ended = run()
    assert ended.exit_code == 2
    assert "nothing to import: Springtide's exporters" in ended.output
    assert "--kind" in ended.output


def test_help_lists_the_sample_sources() -> None:
    help = " ".join(run("--help-all").output.split())
    assert [name for name in SOURCES.points if f"{name} {SOURCES.get(name).text}" not in help] == []


def test_show_queries_prints_the_actual_queries() -> None:
    output = run("--show-queries", "--node-label", "kubernetes_node", "--rate-seconds", "240")
    assert output.exit_code == 0
    lines = output.output.splitlines()
    assert lines[::2] == list(DEFAULT_QUERIES)
    assert all(line.endswith("[60s:15s]") for line in lines[1::2])
    assert re.search(r"sum by \(kubernetes_node\).*\[240s\]", lines[1])


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("--url", "prometheus:9090"), "provider.url"),
        (("--url", "https://user:secret@prometheus"), "provider.url"),
        (("--window-seconds", "7"), "provider.window_seconds"),
        (("--step-seconds", "40"), "provider.step_seconds"),
        (("--node-label", "a-b"), "provider.node_label"),
        (("--show-queries", "--queries", "{node.cpu: up}"), "provider.queries"),
        (("--kind", "influx"), "provider.kind"),
        (("--once", "--options", "{directory: /tmp}"), "provider.options"),
    ],
)
def test_invalid_settings_are_named(arguments: tuple[str, ...], key: str) -> None:
    ended = run(*arguments)
    assert (ended.exit_code, key in ended.output, "Traceback" in ended.output) == (2, True, False)


def test_once_reports_an_unreachable_source() -> None:
    ended = run("--kind", "prometheus", "--once", "--url", "http://127.0.0.1:1")
    assert (ended.exit_code, "127.0.0.1:1" in ended.output) == (1, True)


@pytest.mark.parametrize(
    ("fetched", "says"),
    [
        (FetchedUsage(), "every answer was empty"),
        (FetchedUsage(left_out=Counter(unknown_node=3, no_node=1)), "left out: 1 no_node, 3"),
        (
            FetchedUsage(failed={"node.cpu_cores": "bad query"}),
            "1 queries failed, with the reasons above",
        ),
    ],
)
def test_once_without_usage_is_a_failure_with_reasons(
    fetched: FetchedUsage, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> FetchedUsage:
        return fetched

    monkeypatch.setattr(provider, "fetch_once", nothing)
    ended = run("--kind", "prometheus", "--once")
    assert (ended.exit_code, says in ended.output) == (1, True)
    assert "fix: check the queries with --show-queries" in ended.output


def test_missing_cluster_hint_names_no_lease(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    home = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(home, str(tmp_path / "none"))
    ended = run("--kind", "prometheus", "--port", "0", "--host", "127.0.0.1")
    assert (ended.exit_code, "--no-lease" in ended.output) == (1, True)
