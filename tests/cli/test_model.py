"""`springtide model`: what is installed, and which files and pods an import takes."""

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
from pipeline.processors.predictors import registry
from pipeline.processors.predictors.registry import GROUP, available
from pipeline.topics.checkpoints import NodeCheckpoint
from pipeline.topics.codec import encode_pack
from tests.processors.windows import GIB, Pod, window

TIME = "2023-11-14T22:14:00Z"
HISTOGRAM = {"referenceTimestamp": TIME, "totalWeight": 1.0, "bucketWeights": {"3": 10_000}}


def of_vpa(name: str) -> dict[str, object]:
    return {
        "kind": "VerticalPodAutoscalerCheckpoint",
        "metadata": {"name": name},
        "status": {"cpuHistogram": HISTOGRAM, "lastUpdateTime": TIME, "version": "v3"},
    }


def importing(folder: Path, document: object, *arguments: str, source: str = "vpa") -> Result:
    file = folder / "checkpoint.json"
    text = document if isinstance(document, str) else json.dumps(document)
    file.write_text(text)
    command = ["model", "import", "--from", source, "--node", "n", str(file), *arguments]
    # Nobody listens there: what is wrong with the files is said before anybody is asked.
    quick = ["--bootstrap-servers", "127.0.0.1:1", "--request-timeout-seconds", "1"]
    return CliRunner().invoke(cli, [*command, *quick])


def test_predictors_are_listed_with_their_package_and_a_line_each() -> None:
    lines = CliRunner().invoke(cli, ["model", "predictors"]).output.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert [line.split()[0] for line in heads] == list(available())
    assert all("springtide 0." in line for line in heads)
    assert any(line.endswith("sum of the requests of active pods / a") for line in heads)
    assert "    a: divisor of the requests; above 0; default 1.1" in lines


def test_predictors_are_documented_in_markdown() -> None:
    result = CliRunner().invoke(cli, ["model", "predictors", "--markdown"])
    assert result.exit_code == 0
    assert "| `borg-default` | `a` | 1.1 | above 0 | divisor of the requests |\n" in result.output


def test_a_predictor_that_cannot_be_loaded_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "springtide_test_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    odd = {
        "broken": EntryPoint("broken", "springtide_test_broken:It", GROUP),
        "gone": EntryPoint("gone", "pipeline.processors.predictors.vpa:Gone", GROUP),
    }
    found = {**odd, **available()}
    monkeypatch.setattr(model, "available", lambda: found)
    monkeypatch.setattr(registry, "available", lambda: found)
    result = CliRunner().invoke(cli, ["model", "predictors"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    broken, gone, *others = [line for line in lines if not line.startswith(" ")]
    assert "cannot be loaded: ZeroDivisionError" in broken
    assert "cannot be loaded: AttributeError" in gone
    assert len(others) == len(available())


def test_what_a_pod_is_called_does_nothing_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uid = "a\x1b[2J"
    bank = Bank()
    bank.apply([window(1, [Pod(uid, (1.0, GIB))])])
    checkpoint = NodeCheckpoint(
        node="node-a", epoch=1, round=1, generation=1, covers=1, state=bank.state_of("node-a")
    )

    async def newest(*_: object) -> Found:
        return Found(b"node-a@1", encode_pack(checkpoint), 7)

    monkeypatch.setattr(model, "newest_checkpoint", newest)
    result = CliRunner().invoke(cli, ["model", "inspect", "node-a", "--pods"])
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert r"a\x1b[2J" in result.output


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch) -> NodeCheckpoint:
    """What Kafka has of node-a."""
    bank = Bank()
    bank.apply([window(end, [Pod("web", (1.0, GIB))]) for end in range(3)])
    found = NodeCheckpoint(
        node="node-a", epoch=1, round=1, generation=1, covers=1, state=bank.state_of("node-a")
    )

    async def newest(*_: object) -> Found:
        return Found(b"node-a@1", encode_pack(found), 7)

    monkeypatch.setattr(model, "newest_checkpoint", newest)
    monkeypatch.setattr(model_export, "newest_checkpoint", newest)
    return found


def test_of_a_row_that_is_not_there_nothing_is_shown(checkpoint: NodeCheckpoint) -> None:
    result = CliRunner().invoke(cli, ["model", "inspect", "node-a", "--row", "bogus"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no model of bogus on node node-a" in result.stderr
    result = CliRunner().invoke(cli, ["model", "inspect", "node-a", "--row", "web"])
    assert (result.exit_code, "node node-a, machine" in result.stdout) == (0, True)


def exporting(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["model", "export", "node-a", *arguments])


def test_an_export_is_the_state_as_it_is(checkpoint: NodeCheckpoint, tmp_path: Path) -> None:
    file = tmp_path / "new" / "node-a.springtide"
    result = exporting("--output", str(file))
    assert result.exit_code == 0, result.output
    assert file.read_bytes() == checkpoint.state
    assert "8 entities and 1 pods of machine machine-1, 3 windows applied" in result.output
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_that_is_there_is_replaced_only_if_that_is_said(
    checkpoint: NodeCheckpoint, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    result = exporting("--output", str(file))
    assert (result.exit_code, "is there already" in result.stderr) == (2, True)
    assert file.read_text() == "precious"
    assert exporting("--output", str(file), "--overwrite").exit_code == 0
    assert file.read_bytes() == checkpoint.state
    result = exporting("--output", str(file / "below"))
    assert (result.exit_code, "cannot write" in result.stderr) == (1, True), result.output
    assert exporting().exit_code == 2


def test_an_export_for_koordinator_is_a_file_of_each(
    checkpoint: NodeCheckpoint, tmp_path: Path
) -> None:
    result = exporting("--as", "koordinator", "--output", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert {"__node__", "__node-sys__", "web"} <= {path.name for path in tmp_path.iterdir()}
    read = json.loads((tmp_path / "web").read_text())
    assert (read["UID"], read["CPU"]["totalWeight"] > 0) == ("web", True)
    result = exporting("--as", "koordinator", "--output", str(tmp_path))
    assert (result.exit_code, "is there already" in result.stderr) == (2, True)
    config = tmp_path / "settings.yaml"
    config.write_text("model: {histogram: {preset: vpa}}")
    result = exporting("--as", "koordinator", "--output", str(tmp_path), "--config", str(config))
    assert (result.exit_code, "is of model" in result.stderr) == (1, True)


TRACE = "window_end,cpu_cores_avg\n2026-11-01T00:00:00Z,1.5\n2026-11-01T00:05:00Z,-2\n"


def fitting(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["model", "fit", str(file), "--node", "n", *arguments])


def test_a_fit_shows_what_predictors_say_and_writes_the_models(tmp_path: Path) -> None:
    file, output = tmp_path / "trace.csv", tmp_path / "n.springtide"
    file.write_text(TRACE)
    result = fitting(file, "--predictors", "[percentile, vpa]", "--output", str(output))
    assert result.exit_code == 0, result.output
    assert "of no machine, 2 windows applied" in result.output
    assert "cpu_cores_avg: 1 bad values, taken as unknown" in result.output
    assert ["ENTITY", "RESOURCE", "PERCENTILE", "VPA"] in [
        line.split() for line in result.output.splitlines()
    ]
    state = state_codec.decode(output.read_bytes())
    assert (state.node, state.machine_id, state.applied) == ("n", "", 2)
    assert fitting(file, "--output", str(output)).exit_code == 2
    assert fitting(file, "--output", str(output), "--overwrite").exit_code == 0


def test_a_fit_is_of_a_node_with_a_name(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["model", "fit", str(tmp_path), "--node", ""])
    assert result.exit_code == 2
    assert "--node: node name has 0 bytes" in result.output


def test_a_fit_replaces_neither_its_trace_nor_what_is_no_file(tmp_path: Path) -> None:
    file, pipe, link = (tmp_path / name for name in ("trace.csv", "pipe", "link"))
    file.write_text(TRACE)
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "led")
    for output, says in ((file, "is the trace itself"), (pipe, "is no file")):
        result = fitting(file, "--output", str(output), "--overwrite")
        assert (result.exit_code, says in result.output) == (2, True), result.output
    assert file.read_text() == TRACE
    assert pipe.is_fifo()
    assert fitting(file, "--output", str(link)).exit_code == 0
    assert link.is_symlink()
    assert (tmp_path / "led").is_file()


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ("window_end,gpu\n2026-11-01T00:00:00Z,1\n", 1, "there is no column 'gpu'"),
        (TRACE.replace("cpu", "coverage,cpu").replace("Z,", "Z,0.1,"), 1, "nothing is learned"),
        ("window_end\n2026-11-01T00:00:00Z\n2026-11-01T00:00:30Z\n", 1, "no window has a usage"),
        ("window_end\n2026-11-01T00:00:00Z\n", 1, "fix: each window has a window_end"),
        ("window_end\n2026-11-01\n2026-11-02\n", 1, "fix: write it as"),
        ("cpu_cores_avg\n1\n", 1, "fix: add it, in RFC 3339"),
        (TRACE + TRACE.splitlines()[-1] + "\n", 1, "fix: a window has one row of kind node"),
        (None, 2, "cannot read"),
    ],
)
def test_a_file_that_teaches_nothing_is_named(
    tmp_path: Path, content: str | None, code: int, says: str
) -> None:
    file = tmp_path / "trace.csv"
    if content:
        file.write_text(content)
    result = fitting(file, "--output", str(tmp_path / "models"))
    assert (result.exit_code, says in result.stderr) == (code, True), result.output
    assert str(file) in result.stderr
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("content", "arguments", "code", "says"),
    [
        (b"STBANK", (), 1, "not a node state"),
        (b"STBANK" + bytes(100), (), 1, "name a whole file of `springtide model export`"),
        (b"", ("--pod", "a"), 2, "one file, with all pods"),
        (b"", ("other",), 2, "one file, with all pods"),
    ],
)
def test_what_is_no_export_is_refused_with_its_name(
    tmp_path: Path, content: bytes, arguments: tuple[str, ...], code: int, says: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    result = CliRunner().invoke(
        cli, ["model", "import", "--from", "springtide", "--node", "n", str(file), *arguments]
    )
    assert (result.exit_code, says in result.stderr) == (code, True), result.output
    assert code == 2 or f"error: {file}: " in result.stderr


@pytest.mark.parametrize(
    ("document", "arguments", "code", "says"),
    [
        (of_vpa("web"), (), 2, "vpa needs --pod UID"),
        (of_vpa("web"), ("--pod", "a=db"), 2, "no checkpoint 'db' in the files"),
        ({"kind": "List", "items": [of_vpa("web"), of_vpa("db")]}, ("--pod", "a"), 2, "web, db"),
        (of_vpa("web"), ("--pod", "a", "--pod", "a=web"), 2, "two checkpoints are for one model"),
        (of_vpa("web"), ("--pod", "node=web"), 2, "'node' is no pod"),
        ("a: [", ("--pod", "a"), 1, "checkpoint.json: neither JSON nor YAML"),
        ("[]", ("--pod", "a"), 1, "checkpoint.json: it holds list, not an object"),
        (" \n", ("--pod", "a"), 1, "checkpoint.json: the file is empty"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_and_what_is_no_checkpoint_is_refused(
    tmp_path: Path, document: object, arguments: tuple[str, ...], code: int, says: str
) -> None:
    result = importing(tmp_path, document, *arguments)
    assert (result.exit_code, says in result.output) == (code, True), result.output
    assert "\n  fix: " in result.output


def test_an_error_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    of_v2 = of_vpa("web")
    of_v2["status"] = {"version": "v2"}
    result = importing(tmp_path, of_v2, "--pod", "a")
    assert result.exit_code == 1
    assert "checkpoint.json: web has the checkpoint version 'v2', not 'v3'" in result.output
    assert "fix: " in result.output


def test_numbers_are_json_as_go_writes_it(tmp_path: Path) -> None:
    histogram = '{"referenceTimestamp": null, "bucketWeights": {"1": 5e-07}, "totalWeight": 5e-07}'
    document = f'{{"UID": "__node__", "CPU": {histogram}, "LastUpdated": "{TIME}"}}'
    result = importing(tmp_path, document, source="koordinator")
    assert (result.exit_code, "127.0.0.1:1" in result.output) == (1, True), result.output


def test_files_of_koordinator_say_themselves_what_they_are_of(tmp_path: Path) -> None:
    document = {"UID": "__node__", "CPU": HISTOGRAM, "LastUpdated": TIME}
    result = importing(tmp_path, document, "--pod", "a", source="koordinator")
    assert (result.exit_code, "--pod is for vpa" in result.output) == (2, True)
    result = importing(tmp_path, of_vpa("web"), source="koordinator")
    assert (result.exit_code, "it has no UID" in result.output) == (1, True)
    result = importing(tmp_path, document, source="koordinator")
    assert (result.exit_code, "127.0.0.1:1" in result.output) == (1, True), result.output


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli, ["model", "import", "--from", "vpa", "--node", "n", "--pod", "a", str(tmp_path)]
    )
    assert (result.exit_code, f"cannot read {tmp_path}" in result.output) == (2, True)
