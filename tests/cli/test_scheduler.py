"""`springtide scheduler`: generated files work, and problems have the right exit code."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from pipeline.cli import scheduler
from pipeline.cli.main import cli
from pipeline.cli.scheduler import usage_series
from pipeline.cli.trace_inputs import folder_input


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["scheduler", *arguments])


def write_file(folder: Path, tree: Any) -> str:
    file = folder / "scheduler.yaml"
    file.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree))
    return str(file)


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_files_in_deploy_are_the_generated_ones(project: Path, mode: str) -> None:
    file = project / "deploy" / "scheduler" / f"{mode}.yaml"
    result = run("config", "--mode", mode)
    assert (result.exit_code, result.stdout) == (0, file.read_text()), result.output
    checked = run("check", str(file), "--mode", mode)
    assert (checked.exit_code, checked.stderr) == (0, "")
    assert "no problems with an extender" in checked.stdout


def test_config_contains_the_options(tmp_path: Path) -> None:
    result = run(
        "config", "--mode", "act", "--port", "9443", "--ca-file", "/ca.pem", "--cert-file",
        "/me.pem", "--key-file", "/me.key", "--weight", "5", "--profile", "mine",
        "--scheduler-kubeconfig", "/kube",
    )  # fmt: skip
    tree = yaml.safe_load(result.stdout)
    (extender,) = tree["extenders"]
    expected = {
        "urlPrefix": "https://springtide-extender.springtide-system.svc:9443",
        "enableHTTPS": True, "weight": 5,
        "tlsConfig": {"caFile": "/ca.pem", "certFile": "/me.pem", "keyFile": "/me.key"},
    }  # fmt: skip
    assert extender | expected == extender
    assert tree["profiles"][0]["schedulerName"] == "mine"
    assert tree["clientConnection"] == {"kubeconfig": "/kube"}
    assert run("check", write_file(tmp_path, result.stdout), "--mode", "act").stderr == ""


def test_config_refuses_an_invalid_address() -> None:
    result = run("config", "--url", "extender:8888")
    assert (result.exit_code, "extenders[0].urlPrefix" in result.stderr) == (2, True)
    assert result.stdout == ""


@pytest.mark.parametrize(
    "flags",
    [
        ("--cert-file", "a", "--key-file", "b"), ("--url", "http://x", "--ca-file", "/ca"),
        ("--ca-file", "/ca", "--cert-file", "a"), ("--profile", ""), ("--port", "0"),
        ("--weight", "0"),
    ],
)  # fmt: skip
def test_contradicting_flags_are_a_usage_error(flags: tuple[str, ...]) -> None:
    result = run("config", *flags)
    assert (result.exit_code, result.stdout) == (2, "")


def test_an_unused_certificate_is_explained_by_the_address() -> None:
    pair = ("--cert-file", "me.pem", "--key-file", "me.key")
    by_default = run("config", *pair).stderr
    assert "me.pem is unused: the default address is http://springtide-extender" in by_default
    assert (
        "me.pem is unused: --url http://x is not"
        in run("config", "--url", "http://x", *pair).stderr
    )


def test_config_warns_of_an_unverified_certificate() -> None:
    result = run("config", "--url", "https://x:8888")
    assert (result.exit_code, "certificate is not verified" in result.stderr) == (0, True)
    assert yaml.safe_load(result.stdout)["extenders"][0]["enableHTTPS"] is True


def test_check_prints_warnings_and_exits_with_3_for_errors(tmp_path: Path) -> None:
    tree = yaml.safe_load(run("config").stdout)
    warned = run("check", write_file(tmp_path, tree), "--mode", "act")
    assert warned.exit_code == 0
    assert warned.stderr.startswith("warning: profile default-scheduler: NodeResourcesFit, ")
    tree["extenders"][0]["filterVerb"] = "predicates"
    refused = run("check", write_file(tmp_path, tree), "-o", "json")
    assert refused.exit_code == 3
    (outcomes,) = json.loads(refused.stdout)
    assert (outcomes["where"], outcomes["is_refused"]) == ("extenders[0].filterVerb", True)


@pytest.mark.parametrize("text", ["", "{", "kind: Pod", "a: 1\na: 2", "\0", "[1]"])
def test_check_exits_with_1_for_other_files(tmp_path: Path, text: str) -> None:
    file = write_file(tmp_path, text)
    result = run("check", file)
    assert (result.exit_code, file in result.stderr, "fix: " in result.stderr) == (1, True, True)


def test_check_exits_with_1_for_a_missing_file(tmp_path: Path) -> None:
    result = run("check", str(tmp_path / "none.yaml"))
    assert (result.exit_code, "No such file" in result.stderr) == (1, True)


def test_simulate_shows_that_lower_targets_overshoot_less() -> None:
    lines = run("simulate").stdout.splitlines()
    assert lines[0].split() == ["TARGET", "NODES", "AVERAGE", "P95", "HIGHEST", "OVER", "50%"]
    above = [float(line.split()[-1].rstrip("%")) for line in lines[1:5]]
    assert above == sorted(above, reverse=True)
    assert above[0] > 50 > 10 > above[2]
    outcomes = json.loads(run("simulate", "--wanted", "60", "-o", "json").stdout)
    assert [one["target_percent"] for one in outcomes] == [60, 55, 50, 45]
    for flags in (
        ("--nodes", "0"), ("--wanted", "nan"), ("--used", "nan", "-o", "json"), ("--dataset", "a"),
    ):  # fmt: skip
        assert run("simulate", *flags).exit_code == 2


def test_simulate_takes_the_inputs_of_other_commands(tmp_path: Path) -> None:
    trace = ("--trace", "tests/data/traces", "--pods", "30")
    outcomes = json.loads(run("simulate", *trace, "-o", "json").stdout)
    assert [one["target_percent"] for one in outcomes] == [50, 45, 40, 35]
    for flags, problem in (
        (("--since", "1h"), "give either --trace or --live"),
        ((*trace, "--live"), "give either --trace or --live"),
        ((*trace, "--until", "1h"), "do not apply to the traces in tests/data/traces"),
        (("--trace", str(tmp_path)), "has no trace, and is no archive"),
    ):
        result = run("simulate", *flags)
        assert (result.exit_code, problem in result.stderr) == (2, True), result.output


def test_pods_of_a_long_trace_are_drawn_from_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = folder_input(Path("tests/data/traces"))
    trace = next(traces.read("google_jobs"))
    monkeypatch.setattr(scheduler, "_MOST_SAMPLES", 3 * trace.steps)
    series = usage_series(traces, [])
    chosen = [0, (len(trace.pods) - 1) // 2, len(trace.pods) - 1]
    assert series.requests.tolist() == trace.requests[chosen, 0].tolist()
    known = (~np.isnan(series.usage)).sum(axis=1)
    assert known.tolist() == [int((~np.isnan(trace.stay_usage(pod)[:, 0])).sum()) for pod in chosen]


def test_simulate_reports_targets_that_cannot_be_reached() -> None:
    assert "no target keeps nodes at 20%" in run("simulate", "--wanted", "20").stdout
    assert run("simulate", "--nodes", "1", "--pods", "1").stdout.count("too few pods") == 4
    outcomes = json.loads(run("simulate", "--nodes", "1", "--pods", "1", "-o", "json").stdout)
    assert [one["average"] for one in outcomes] == [None] * 4
    assert "268 pods fit on no node" in run("simulate", "--nodes", "1").stdout


def test_doctor_checks_the_scheduler_file(project: Path) -> None:
    file = str(project / "deploy" / "scheduler" / "observe.yaml")
    for mode, status in (("observe", "ok"), ("act", "warn")):
        result = CliRunner().invoke(
            cli,
            ["doctor", "-o", "json", "--mode", mode, "--scheduler-file", file,
             "--bootstrap-servers", "127.0.0.1:1"],
        )  # fmt: skip
        checks = {one["name"]: one for one in json.loads(result.stdout)["checks"]}
        assert checks["scheduler"]["status"] == status
