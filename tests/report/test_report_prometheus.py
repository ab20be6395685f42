"""`springtide report` against a real Prometheus with a recorded week: its numbers equal a
recomputation."""

import csv
import io
import json
import math
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pipeline.cli.main import cli
from pipeline.sources import prometheus_history
from pipeline.times import format_time
from tests.http_program import REQUEST_SECONDS
from tests.provider.local_prometheus import LocalPrometheus, local_prometheus
from tests.report.recomputed_report import cpu_target, hours_of_pods, memory_target
from tests.report.recorded_week import (
    ALLOCATABLE,
    CAPACITY,
    END_SECONDS,
    HOURS,
    NODES,
    STEPS,
    SYSTEM_BYTES,
    SYSTEM_CORES,
    RecordedPod,
    RecordedWeek,
    recorded_week,
)

pytestmark = pytest.mark.xdist_group("prometheus")

PROJECT = Path(__file__).parents[2]
_LIMIT = "--query.max-samples=6000"
_FEWER = "asking for fewer hours at a time"
Row = dict[str, Any]


class Recorded(NamedTuple):
    """A Prometheus with the week."""

    prometheus: LocalPrometheus
    week: RecordedWeek


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    week = recorded_week()
    with local_prometheus([], recorded=week.open_metrics(), flags=[_LIMIT]) as prometheus:
        yield Recorded(prometheus, week)


def report(url: str, *arguments: str) -> Result:
    until = format_time(END_SECONDS)
    return CliRunner().invoke(cli, ["report", "--prometheus", url, "--until", until, *arguments])


@pytest.fixture(scope="module")
def rows(recorded: Recorded) -> dict[tuple[str, str, str], Row]:
    """The rows of the report by level, name and resource."""
    result = report(recorded.prometheus.url, "-o", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["hours"] == HOURS
    assert document["end"] == "2023-11-15T00:00:00Z"
    return {(row["level"], row["name"], row["resource"]): row for row in document["items"]}


def _running(week: RecordedWeek) -> list[RecordedPod]:
    return [pod for pod in week.pods if pod.end == STEPS]


def test_amounts_equal_a_recomputation(
    recorded: Recorded, rows: dict[tuple[str, str, str], Row]
) -> None:
    week, running = recorded.week, _running(recorded.week)
    assert 0 < len(running) < len(week.pods)
    hours = hours_of_pods(week)
    units = (1000.0, 1.0)
    groups = {("cluster", "cluster"): running} | {
        ("node", node): [pod for pod in running if pod.node == node] for node in NODES
    }
    for (level, name), pods in groups.items():
        for r, resource in enumerate(("cpu", "memory")):
            row = rows[level, name, resource]
            requesting = [pod for pod in pods if pod.requests[r]]
            requests = sum(pod.requests[r] for pod in pods) * units[r]
            assert row["pods"] == len(pods)
            assert row["pods_without_request"] == len(pods) - len(requesting)
            assert row["pods_without_usage"] == 0
            assert row["requests"] == pytest.approx(requests)
            mean = sum(hours[pod.name]["mean"][r] for pod in requesting)
            assert row["usage_mean"] == pytest.approx(mean, rel=1e-9)
            assert row["unused"] == pytest.approx(requests - mean)
            nodes = len(NODES) if level == "cluster" else 1
            assert row["allocatable"] == pytest.approx(nodes * ALLOCATABLE[r] * units[r])


def test_targets_equal_a_recomputation(
    recorded: Recorded, rows: dict[tuple[str, str, str], Row]
) -> None:
    hours = hours_of_pods(recorded.week)
    highest = {name: each["highest"] for name, each in hours.items()}
    workloads: dict[str, list[str]] = {}
    for pod in recorded.week.pods:
        kind, name = pod.controller
        names = {"ReplicaSet": "Deployment/shop/web"}
        workloads.setdefault(names.get(kind, f"{kind}/shop/{name}"), []).append(pod.name)
    assert len(workloads) == 4
    for name, pods in workloads.items():
        expected = cpu_target(recorded.week, pods, highest) * 1000, memory_target(pods, highest)
        for r, resource in enumerate(("cpu", "memory")):
            row = rows["workload", name, resource]
            assert row["pod_request_target"] == pytest.approx(expected[r]), name
            requesting = row["pods"] - row["pods_without_request"]
            saved = row["requests"] - expected[r] * requesting
            assert row["saved"] == pytest.approx(saved)


def test_usage_of_nodes_equals_a_recomputation(
    recorded: Recorded, rows: dict[tuple[str, str, str], Row]
) -> None:
    for node in NODES:
        usage = np.nansum([pod.usage for pod in recorded.week.pods if pod.node == node], axis=0)
        usage = usage + np.array((SYSTEM_CORES, SYSTEM_BYTES))
        cpu, memory = (rows["node", node, resource] for resource in ("cpu", "memory"))
        # Rates look at samples within the hour: eleven of its twelve steps.
        last = usage[-11:, 0].mean() / ALLOCATABLE[0]
        assert cpu["last_hour_percent"] == pytest.approx(100 * last, rel=1e-6)
        last = usage[-12:, 1].mean() / ALLOCATABLE[1]
        assert memory["last_hour_percent"] == pytest.approx(100 * last, rel=1e-9)
        assert (cpu["hot_hours"], cpu["hot"], memory["hot"]) == (0, "", "")
        assert cpu["pool"] == ("big" if node == NODES[0] else "small")


def test_threshold_makes_nodes_hot(recorded: Recorded) -> None:
    result = report(recorded.prometheus.url, "--by", "node", "-o", "csv", "--hot-memory", "1.5")
    nodes = [*csv.DictReader(io.StringIO(result.stdout))]
    memory = [row for row in nodes if row["resource"] == "memory"]
    assert [row["name"] for row in memory] == [*NODES]
    for row in memory:
        is_hot = float(row["last_hour_percent"]) > 1.5
        assert (row["hot"] != "") == is_hot
        assert int(row["hot_hours"]) > 0


def test_offers_follow_from_peaks(rows: dict[tuple[str, str, str], Row]) -> None:
    for node in NODES:
        for resource in ("cpu", "memory"):
            row = rows["node", node, resource]
            peaks = [each["peak"] for each in row["risks"]]
            assert [each["risk"] for each in row["risks"]] == [0.01, 0.02, 0.05]
            assert peaks == sorted(peaks, reverse=True)
            for each in row["risks"]:
                free = max(row["requests"] - np.ceil(each["peak"]), 0)
                assert each["mid"] == free - int(free) // 10
                assert each["batch"] > 0
            for level in ("pool", "cluster"):
                assert any(key[0] == level for key in rows)
    for part in ("peak", "mid", "batch"):
        for i in range(3):
            total = sum(rows["node", node, "cpu"]["risks"][i][part] for node in NODES)
            cluster = rows["cluster", "cluster", "cpu"]["risks"][i][part]
            assert cluster == pytest.approx(total)


def test_batch_equals_a_recomputation(
    recorded: Recorded, rows: dict[tuple[str, str, str], Row]
) -> None:
    hours = hours_of_pods(recorded.week)
    for node in NODES:
        prod = [
            pod for pod in _running(recorded.week) if pod.node == node and any(pod.requests)
        ]  # fmt: skip
        for r, (resource, unit, reclaimed) in enumerate((("cpu", 1000, 60), ("memory", 1, 65))):
            capacity = int(CAPACITY[r] * unit)
            # The kubelet reserves more than other processes use.
            taken = capacity - int(ALLOCATABLE[r] * unit)
            taken += sum(math.ceil(hours[pod.name]["highest"][-1, r]) for pod in prod)
            for each in rows["node", node, resource]["risks"]:
                left = capacity - capacity * (100 - reclaimed) // 100 - taken - int(each["mid"])
                assert each["batch"] == left - left // 10


def test_text_and_page(recorded: Recorded, tmp_path: Any) -> None:
    page = tmp_path / "report.html"
    result = report(recorded.prometheus.url, "--html", str(page))
    assert result.exit_code == 0, result.output
    running = len(_running(recorded.week))
    first = f"3 nodes, {running} running pods, 168 hours until 2023-11-15T00:00:00Z"
    assert result.stdout.splitlines()[0] == first
    assert "Deployment/shop/web" in result.stdout
    text = page.read_text()
    assert first in text
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_sample_of_the_documentation_is_output(recorded: Recorded) -> None:
    document = (PROJECT / "docs" / "how-to" / "report.md").read_text()
    (sample,) = re.findall(r"```text\n(.+?)```", document, re.DOTALL)
    assert report(recorded.prometheus.url).stdout == sample


def test_matchers_select(recorded: Recorded) -> None:
    running = {pod.name for pod in _running(recorded.week)}
    matcher = 'pod!~"pod-[0-3]"'
    result = report(recorded.prometheus.url, "--match", matcher, "--by", "cluster", "-o", "json")
    assert result.exit_code == 0, result.output
    left = running - {f"pod-{number}" for number in range(4)}
    assert json.loads(result.stdout)["items"][0]["pods"] == len(left) < len(running)
    result = report(recorded.prometheus.url, "--match", "node")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        2, "error: 'node' is not a matcher of labels",
    )  # fmt: skip


def test_other_times_have_no_pods(recorded: Recorded) -> None:
    result = CliRunner().invoke(
        cli, ["report", "--prometheus", recorded.prometheus.url, "--until", "2022-01-01T00:00:00Z"]
    )
    assert result.exit_code == 1
    assert "has no running pods" in result.stderr


def test_parts_are_halved_until_the_server_takes_them(
    recorded: Recorded, rows: dict[tuple[str, str, str], Row]
) -> None:
    assert rows["cluster", "cluster", "cpu"]["usage_mean"] > 0.0
    with urllib.request.urlopen(
        f"{recorded.prometheus.url}/metrics", timeout=REQUEST_SECONDS
    ) as page:
        lines = page.read().decode().splitlines()
    refused = 'prometheus_http_requests_total{code="422",handler="/api/v1/query_range"}'
    assert any(line.startswith(refused) for line in lines)


@contextmanager
def _server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A server that answers each request so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def _proxy(prometheus: LocalPrometheus, token: str) -> AbstractContextManager[str]:
    """A proxy that demands a token, and forwards to Prometheus below the path /prom."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        path = request.path.removeprefix("/prom")
        if request.headers.get("Authorization") != f"Bearer {token}":
            _answer(request, 401, b"who are you?")
        elif path == request.path:
            _answer(request, 404, b"nothing here")
        else:
            _forward(request, prometheus.url + path)

    return _server(answer)


def _forward(request: BaseHTTPRequestHandler, url: str) -> None:
    try:
        with urllib.request.urlopen(url, timeout=60) as forwarded:
            _answer(request, forwarded.status, forwarded.read())
    except urllib.error.HTTPError as error:
        _answer(request, error.code, error.read())


def _answer(request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    request.send_response(status)
    request.end_headers()
    request.wfile.write(body)


def test_errors_of_access_say_what_to_do(recorded: Recorded, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    with _proxy(recorded.prometheus, "secret") as url:
        denied = report(f"{url}/prom")
        assert (denied.exit_code, denied.stderr) == (
            1,
            f"error: {url}/prom: 401 who are you?\n  fix: give --token-file or --basic-auth-file\n",
        )
        missing = report(url, "--token-file", str(token))
        assert missing.exit_code == 1
        assert "404 nothing here" in missing.stderr
        assert "path prefix" in missing.stderr
    gone = report(url)
    assert gone.exit_code == 1
    assert "cannot connect to" in gone.stderr
    exposed = report("http://prometheus.example", "--token-file", str(token))
    assert exposed.exit_code == 2
    assert "readable on the network" in exposed.stderr


def test_queries_that_a_fake_server_is_too_slow_for_are_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests, is_over = [], threading.Event()

    def times_out(handler: BaseHTTPRequestHandler) -> None:
        requests.append(handler.path)
        body = b'{"status":"error","errorType":"timeout","error":"query timed out in execution"}'
        _answer(handler, 503, body)

    def never_answers(handler: BaseHTTPRequestHandler) -> None:
        requests.append(handler.path)
        is_over.wait()

    with _server(times_out) as url:
        result = report(url)
    assert (result.exit_code, len(requests)) == (1, 1)
    assert (
        "503 timeout: query timed out in execution\n  fix: give the server more CPU"
        in result.stderr
    )
    monkeypatch.setattr(prometheus_history, "HISTORY_QUERY_SECONDS", 1.0)
    with _server(never_answers) as url:
        result = report(url)
        is_over.set()
    assert (result.exit_code, len(requests)) == (1, 2)
    assert "no answer within 1 s\n  fix: give the server more CPU" in result.stderr


def test_texts_of_a_fake_server_do_not_reach_the_terminal_as_they_are(recorded: Recorded) -> None:
    text = {"errorType": "execution", "error": "too many samples\a\x1b[31m"}
    refusal = json.dumps({"status": "error", **text}).encode()

    def answer(request: BaseHTTPRequestHandler) -> None:
        if _hours_of(request) > 30:
            _answer(request, 422, refusal)
            return
        url = recorded.prometheus.url + request.path
        with urllib.request.urlopen(url, timeout=REQUEST_SECONDS) as forwarded:
            document = json.loads(forwarded.read())
        _answer(request, 200, json.dumps(document | {"warnings": ["half\a"]}).encode())

    with _server(answer) as url:
        results = [
            CliRunner().invoke(
                cli,
                ["report", "--prometheus", url, "--until", format_time(END_SECONDS), "-o", form],
                color=True,
            )
            for form in ("csv", "table")
        ]
    for result in results:
        assert result.exit_code == 0
        assert f"too many samples\\x07\\x1b[31m: {_FEWER}" in result.stderr
        assert not {"\a", "\x1b"} & {*result.output}


_TIME_OUT = (
    b'{"status":"error","errorType":"execution",'
    b'"error":"expanding series: context deadline exceeded"}'
)


def _hours_of(request: BaseHTTPRequestHandler) -> int:
    """The hours of usage of pods that a request asks for; 0 for another one."""
    own = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
    if "start" in own and "container_" in own.get("query", ""):
        return (int(own["end"]) - int(own["start"])) // 3600 + 1
    minutes = re.search(r"\[(\d+)m:1h\]", own.get("query", ""))
    offset = re.search(r"- 1e9 or .* offset (\d+)h", own.get("query", ""))
    return (int(minutes[1]) + 1) // 60 if minutes else int(offset[1]) if offset else 0


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (422, _TIME_OUT, "422 execution: expanding series: context deadline exceeded"),
        # As nginx before a Prometheus, after its own proxy_read_timeout.
        (504, b"<html>504 Gateway Time-out</html>", "504 <html>504 Gateway Time-out</html>"),
    ],
)
def test_a_proxy_that_times_out_over_long_queries_gets_shorter_ones(
    recorded: Recorded, rows: dict[tuple[str, str, str], Row], status: int, body: bytes, says: str
) -> None:
    refused, answered = [], []

    def answer(request: BaseHTTPRequestHandler) -> None:
        if (hours := _hours_of(request)) > 30:
            refused.append(hours)
            _answer(request, status, body)
        else:
            answered.append(hours)
            _forward(request, recorded.prometheus.url + request.path)

    with _server(answer) as url:
        result = report(url, "-o", "json")
    assert result.exit_code == 0, result.output
    # Four queries run at a time.
    assert 1 <= len(refused) <= 8
    assert sum(answered) >= 4 * HOURS
    assert result.stderr.splitlines()[0] == f"note: {url}: {says}: {_FEWER}"
    for item in json.loads(result.stdout)["items"]:
        row = rows[item["level"], item["name"], item["resource"]]
        assert item["usage_mean"] == pytest.approx(row["usage_mean"], rel=1e-9)
        assert item["risks"] == row["risks"]
        assert item["pod_request_target"] == row["pod_request_target"]


def test_a_proxy_that_times_out_over_a_single_hour_ends_the_report(recorded: Recorded) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        if _hours_of(request):
            _answer(request, 422, _TIME_OUT)
        else:
            _forward(request, recorded.prometheus.url + request.path)

    with _server(answer) as url:
        result = report(url)
    assert result.exit_code == 1
    assert re.search(
        r"context deadline exceeded \(usage of pods from \S+Z to \S+Z\)\n  fix: give the server "
        r"more CPU, raise its --query.timeout, .* --match, or shorten the history with --since\n",
        result.stderr,
    )


def test_a_prometheus_that_times_out_over_every_query_is_an_error() -> None:
    with local_prometheus([], flags=["--query.timeout=0s"]) as prometheus:
        result = report(prometheus.url)
    assert result.exit_code == 1
    assert re.search(r"(timed out|deadline exceeded).*\n  fix: give the server", result.stderr)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "give one of --prometheus URL, --metrics-server and FOLDER"),
        (("--prometheus", "http://h", "--metrics-server"), "give one of"),
        (("--prometheus", "http://h", "--for", "1m"), "--for is only for --metrics-server"),
        (("--metrics-server", "--since", "1h"), "metrics-server has no history"),
        (("--metrics-server", "--for", "11m"), "--for is longer than 10m"),
        (("--prometheus", "localhost:9090"), "is not the URL of a Prometheus"),
        (("--prometheus", "http://user:password@host"), "is not the URL of a Prometheus"),
        (("--prometheus", "http://"), "is not the URL of a Prometheus"),
        (("--prometheus", "http://[::1"), "is not the URL of a Prometheus"),
        (("--prometheus", "http://host:99999"), "is not the URL of a Prometheus"),
        (("--prometheus", "http://host/#/graph"), "is not the URL of a Prometheus"),
        (
            (
                "--prometheus",
                "http://h",
                "--since",
                "2023-01-01T00:00:00Z",
                "--until",
                "2023-01-31T12:30:00Z",
            ),
            "there are 732 whole hours between --since and --until",
        ),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], problem: str) -> None:
    result = CliRunner().invoke(cli, ["report", *arguments])
    assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr
