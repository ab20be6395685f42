"""`springtide model`: installed predictors, and files of export, fit and import."""

import json
import os
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline.cli import model, model_export
from pipeline.cli.main import cli
from pipeline.kafka.newest import Found
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.topics.checkpoints import NodeCheckpoint
from pipeline.topics.codec import encode_pack
from tests.processors.windows import GIB, Pod, window

TIME = "2023-11-14T22:14:00Z"
HISTOGRAM = {"referenceTimestamp": TIME, "totalWeight": 1.0, "bucketWeights": {"3": 10_000}}


def vpa_checkpoint(name: str) -> dict[str, object]:
    return {
        "kind": "VerticalPodAutoscalerCheckpoint",
        "metadata": {"name": name},
        "status": {"cpuHistogram": HISTOGRAM, "lastUpdateTime": TIME, "version": "v3"},
    }


def importing(folder: Path, document: object, *arguments: str, source: str = "vpa") -> Result:
    file = folder / "checkpoint.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    command = ["model", "import", "--from", source, "--node", "n", str(file), *arguments]
    # Nothing listens there: the files are checked before Kafka is read.
    broker = ["--bootstrap-servers", "127.0.0.1:1", "--request-timeout-seconds", "1"]
    return CliRunner().invoke(cli, [*command, *broker])


def test_predictors_are_listed_with_package_and_summary() -> None:
    lines = CliRunner().invoke(cli, ["model", "predictors"]).output.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert [(line.split()[0], "springtide 0." in line) for line in heads] == [
        (name, True) for name in PREDICTORS.points
    ]
    assert any(line.endswith("sum of the requests of active pods / a") for line in heads)
    assert "    a: divisor of the requests; above 0; default 1.1" in lines


def test_predictors_are_listed_as_json() -> None:
    shown = CliRunner().invoke(cli, ["model", "predictors", "-o", "json"])
    items = {item["name"]: item for item in json.loads(shown.stdout)["items"]}
    assert [*items] == [*PREDICTORS.points]
    assert "a: divisor of the requests; above 0; default 1.1" in items["borg-default"]["options"]


def test_predictors_are_documented_in_markdown() -> None:
    result = CliRunner().invoke(cli, ["model", "predictors", "-o", "markdown"])
    assert result.exit_code == 0
    assert "| `borg-default` | `a` | 1.1 | above 0 | divisor of the requests |\n" in result.output


def test_broken_predictors_do_not_hide_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "springtide_test_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    broken = {
        "broken": [EntryPoint("broken", "springtide_test_broken:It", PREDICTORS.group)],
        "gone": [EntryPoint("gone", "pipeline.processors.predictors.vpa:Gone", PREDICTORS.group)],
    }
    points = PREDICTORS.points
    monkeypatch.setattr(PREDICTORS, "points", {**broken, **points})
    result = CliRunner().invoke(cli, ["model", "predictors"])
    lines = [line for line in result.output.splitlines() if not line.startswith(" ")]
    assert (result.exit_code, len(lines)) == (0, 2 + len(points))
    for line, error in zip(lines, ("ZeroDivisionError", "AttributeError"), strict=False):
        assert f"cannot be loaded: {error}" in line


def put_checkpoint(monkeypatch: pytest.MonkeyPatch, pod: Pod) -> NodeCheckpoint:
    """Make a checkpoint with three windows of `pod` the newest of node-a."""
    bank = Bank()
    bank.apply([window(end, [pod]) for end in range(3)])
    record = NodeCheckpoint(
        node="node-a", epoch=1, round=1, generation=1, covers=1, state=bank.encode_state("node-a")
    )

    async def newest(*_: object) -> Found:
        return Found(b"node-a@1", encode_pack(record), 7)

    async def names(*_: object) -> dict[str, str]:
        return {"uid-1": "shop/web-0"}

    monkeypatch.setattr(model, "read_pod_names", names)
    for module in (model, model_export):
        monkeypatch.setattr(module, "newest_checkpoint", newest)
    return record


def test_inspect_escapes_control_characters_of_pod_uids(monkeypatch: pytest.MonkeyPatch) -> None:
    put_checkpoint(monkeypatch, Pod("a\x1b[2J", (1.0, GIB)))
    result = CliRunner().invoke(cli, ["model", "inspect", "node-a", "--pods"])
    assert (result.exit_code, "\x1b" in result.output) == (0, False), result.output
    assert r"a\x1b[2J" in result.output


def test_inspect_shows_names_of_pods_and_uids_in_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    put_checkpoint(monkeypatch, Pod("uid-1", (1.0, GIB)))

    def pods(*arguments: str) -> set[str]:
        result = CliRunner().invoke(cli, ["model", "inspect", "node-a", *arguments])
        assert result.exit_code == 0, result.output
        return {line.split("  ")[0] for line in result.output.splitlines() if "web-0" in line}

    assert pods("--pods") == {"shop/web-0"}
    assert pods("--pods", "-o", "wide") == {"shop/web-0 (uid-1)"}
    assert pods("--row", "shop/web-0") == pods("--row", "uid-1") == {"shop/web-0"}


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch) -> NodeCheckpoint:
    """The newest checkpoint of node-a."""
    return put_checkpoint(monkeypatch, Pod("web", (1.0, GIB)))


def test_inspect_refuses_an_unknown_row(checkpoint: NodeCheckpoint) -> None:
    result = CliRunner().invoke(cli, ["model", "inspect", "node-a", "--row", "bogus"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no model of bogus on node node-a" in result.stderr
    result = CliRunner().invoke(cli, ["model", "inspect", "node-a", "--row", "web"])
    assert (result.exit_code, "node node-a, machine" in result.stdout) == (0, True)


def exporting(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["model", "export", "node-a", *arguments])


def test_export_writes_the_exact_state(checkpoint: NodeCheckpoint, tmp_path: Path) -> None:
    file = tmp_path / "node-a.springtide"
    result = exporting("--to", str(file))
    assert result.exit_code == 0, result.output
    assert file.read_bytes() == checkpoint.state
    assert "8 entities and 1 pods of machine machine-1, 3 windows applied" in result.output
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_export_replaces_a_file_only_with_overwrite(
    checkpoint: NodeCheckpoint, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    result = exporting("--to", str(file))
    assert (result.exit_code, "already exists" in result.stderr) == (2, True)
    assert file.read_text() == "precious"
    assert exporting("--to", str(file), "--overwrite").exit_code == 0
    assert file.read_bytes() == checkpoint.state
    mistyped = tmp_path / "mistyped"
    result = exporting("--to", str(mistyped / "file"))
    assert (result.exit_code, "there is no directory" in result.stderr) == (2, True), result.output
    assert not mistyped.exists()
    result = exporting("--to", str(file / "below"))
    assert (result.exit_code, "there is no directory" in result.stderr) == (2, True), result.output
    assert exporting().exit_code == 2


def test_export_for_koordinator_writes_a_file_per_model(
    checkpoint: NodeCheckpoint, tmp_path: Path
) -> None:
    result = exporting("--as", "koordinator", "--to", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert {"__node__", "__node-sys__", "web"} <= {path.name for path in tmp_path.iterdir()}
    read = json.loads((tmp_path / "web").read_text())
    assert (read["UID"], read["CPU"]["totalWeight"] > 0) == ("web", True)
    result = exporting("--as", "koordinator", "--to", str(tmp_path))
    assert (result.exit_code, "already exists" in result.stderr) == (2, True)
    config = tmp_path / "settings.yaml"
    config.write_text("model: {histogram: {preset: vpa}}")
    result = exporting("--as", "koordinator", "--to", str(tmp_path), "--config", str(config))
    assert (result.exit_code, "is of model" in result.stderr) == (1, True)


TRACE = "window_end,cpu_cores_avg\n2026-11-01T00:00:00Z,1.5\n2026-11-01T00:05:00Z,-2\n"


def fitting(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["model", "fit", str(file), "--node", "n", *arguments])


def test_fit_prints_peaks_and_writes_the_models(tmp_path: Path) -> None:
    file, output = tmp_path / "trace.csv", tmp_path / "n.springtide"
    file.write_text(TRACE)
    result = fitting(file, "--predictors", "[percentile, vpa]", "--to", str(output))
    assert result.exit_code == 0, result.output
    assert "of an unknown machine, 2 windows applied" in result.output
    assert "cpu_cores_avg: 1 invalid value, read as unknown" in result.output
    assert ["ENTITY", "RESOURCE", "PERCENTILE", "VPA"] in [
        line.split() for line in result.output.splitlines()
    ]
    state = state_codec.decode(output.read_bytes())
    assert (state.node, state.machine_id, state.applied) == ("n", "", 2)
    assert fitting(file, "--to", str(output)).exit_code == 2
    assert fitting(file, "--to", str(output), "--overwrite").exit_code == 0


def test_fit_refuses_an_empty_node_name(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["model", "fit", str(tmp_path), "--node", ""])
    assert (result.exit_code, "--node: node name has 0 bytes" in result.output) == (2, True)


def test_fit_replaces_neither_its_trace_nor_a_pipe(tmp_path: Path) -> None:
    file, pipe, link = (tmp_path / name for name in ("trace.csv", "pipe", "link"))
    file.write_text(TRACE)
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "led")
    for output, message in ((file, "is the trace itself"), (pipe, "is not a file")):
        result = fitting(file, "--to", str(output), "--overwrite")
        assert (result.exit_code, message in result.output) == (2, True), result.output
    assert (file.read_text(), pipe.is_fifo()) == (TRACE, True)
    assert fitting(file, "--to", str(link)).exit_code == 0
    assert (link.is_symlink(), (tmp_path / "led").is_file()) == (True, True)


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ("window_end,gpu\n2026-11-01T00:00:00Z,1\n", 1, "unknown column 'gpu'"),
        (TRACE.replace("cpu", "coverage,cpu").replace("Z,", "Z,0.1,"), 1, "nothing to learn"),
        (
            "window_end\n2026-11-01T00:00:00Z\n2026-11-01T00:00:30Z\n",
            1,
            "no window has valid usage",
        ),
        ("window_end\n2026-11-01T00:00:00Z\n", 1, "fix: each window has a window_end"),
        ("window_end\n2026-11-01\n2026-11-02\n", 1, "fix: write it as"),
        ("cpu_cores_avg\n1\n", 1, "fix: add it, in RFC 3339"),
        (TRACE + TRACE.splitlines()[-1] + "\n", 1, "fix: a window has one row of kind node"),
        (None, 2, "cannot read"),
    ],
)
def test_fit_refuses_a_file_without_usable_windows(
    tmp_path: Path, content: str | None, code: int, message: str
) -> None:
    file = tmp_path / "trace.csv"
    if content:
        file.write_text(content)
    result = fitting(file, "--to", str(tmp_path / "models"))
    assert (result.exit_code, message in result.stderr) == (code, True), result.output
    assert str(file) in result.stderr
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("content", "arguments", "code", "message"),
    [
        (b"STBANK", (), 1, "not a node state"),
        (b"STBANK" + bytes(100), (), 1, "give a whole file of `springtide model export`"),
        (b"", ("--pod", "a"), 2, "one file with all pods"),
        (b"", ("other",), 2, "one file with all pods"),
    ],
)
def test_import_refuses_a_file_that_is_not_an_export(
    tmp_path: Path, content: bytes, arguments: tuple[str, ...], code: int, message: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    result = CliRunner().invoke(
        cli, ["model", "import", "--from", "springtide", "--node", "n", str(file), *arguments]
    )
    assert (result.exit_code, message in result.stderr) == (code, True), result.output
    assert code == 2 or f"error: {file}: " in result.stderr


@pytest.mark.parametrize(
    ("document", "arguments", "code", "message"),
    [
        (vpa_checkpoint("web"), (), 2, "vpa needs --pod UID"),
        (vpa_checkpoint("web"), ("--pod", "a=db"), 2, "no checkpoint 'db' in the files"),
        (
            {"kind": "List", "items": [vpa_checkpoint("web"), vpa_checkpoint("db")]},
            ("--pod", "a"), 2, "web, db",
        ),
        (vpa_checkpoint("web"), ("--pod", "a", "--pod", "a=web"), 2, "are for one model"),
        (vpa_checkpoint("web"), ("--pod", "node=web"), 2, "'node' is an entity"),
        ("a: [", ("--pod", "a"), 1, "checkpoint.json: is neither JSON nor YAML"),
        ("[]", ("--pod", "a"), 1, "checkpoint.json: contains list, not an object"),
        (" \n", ("--pod", "a"), 1, "checkpoint.json: is empty"),
        (
            vpa_checkpoint("web") | {"status": {"version": "v2"}}, ("--pod", "a"), 1,
            "checkpoint.json: web has the checkpoint version 'v2', not 'v3'",
        ),
    ],
)  # fmt: skip
def test_import_refuses_wrong_pods_and_invalid_files(
    tmp_path: Path, document: object, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = importing(tmp_path, document, *arguments)
    assert (result.exit_code, message in result.output) == (code, True), result.output
    assert "\n  fix: " in result.output


def test_import_reads_numbers_as_go_writes_them(tmp_path: Path) -> None:
    histogram = '{"referenceTimestamp": null, "bucketWeights": {"1": 5e-07}, "totalWeight": 5e-07}'
    document = f'{{"UID": "__node__", "CPU": {histogram}, "LastUpdated": "{TIME}"}}'
    result = importing(tmp_path, document, source="koordinator")
    assert (result.exit_code, "127.0.0.1:1" in result.output) == (1, True), result.output


def test_import_of_koordinator_takes_the_entity_from_the_file(tmp_path: Path) -> None:
    document = {"UID": "__node__", "CPU": HISTOGRAM, "LastUpdated": TIME}
    for given, flags, code, message in (
        (document, ("--pod", "a"), 2, "--pod is only for --from vpa"),
        (vpa_checkpoint("web"), (), 1, "it has no UID"),
        (document, (), 1, "127.0.0.1:1"),
    ):
        result = importing(tmp_path, given, *flags, source="koordinator")
        assert (result.exit_code, message in result.output) == (code, True), result.output


def test_import_names_an_unreadable_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli, ["model", "import", "--from", "vpa", "--node", "n", "--pod", "a", str(tmp_path)]
    )
    assert (result.exit_code, f"cannot read {tmp_path}" in result.output) == (2, True)
