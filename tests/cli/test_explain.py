"""What `springtide explain` answers where there is nothing to explain, and as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pipeline.cli import explain, node_errors
from pipeline.cli.main import cli
from pipeline.errors import InvalidRecordError
from pipeline.kafka.newest import Found
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.predictions import PredictionRecord
from tests.topics.golden import NODE_RESOURCES, PREDICTION


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: object) -> tuple[PredictionRecord, None, NodeResourcesRecord]:
        return decode_json(PredictionRecord, encode_json(PREDICTION)), None, NODE_RESOURCES

    async def offers(*_: object) -> NodeResourcesRecord:
        return NODE_RESOURCES

    async def names(*_: object) -> dict[str, str]:
        return {PREDICTION.pods.uid[0]: "shop/web-0"}

    monkeypatch.setattr(explain, "read_pod_names", names)
    monkeypatch.setattr(explain, "read_records", read)
    monkeypatch.setattr(explain, "read_offers", offers)


def shown(*arguments: str) -> Any:
    run = CliRunner().invoke(cli, ["explain", PREDICTION.node, "-o", "json", *arguments])
    assert run.exit_code == 0, run.output
    return json.loads(run.stdout)


@pytest.mark.usefixtures("published")
def test_explain_json_has_the_selected_part() -> None:
    assert shown()["node_peaks"]["peaks"].keys() == {"percentile", "nsigma-v1"}
    of_prod = shown("--class", "prod")
    assert (of_prod["classes"].keys(), "node_peaks" in of_prod) == ({"prod"}, False)
    assert shown("--resource", "cpu")["allocatable"] == {"cpu_cores": 3.8}
    part = shown("--predictor", "nsigma-v1", "--class", "node", "--resource", "memory")
    assert part["node_peaks"]["peaks"] == {"nsigma-v1": {"memory_bytes": None}}


def text(*arguments: str) -> str:
    run = CliRunner().invoke(cli, ["explain", PREDICTION.node, *arguments])
    assert run.exit_code == 0, run.output
    return run.output


@pytest.mark.usefixtures("published")
def test_explain_shows_tiers_alone_or_after_the_peaks() -> None:
    assert [words for words in ("cpu of node", "memory for batch") if words not in text()] == []
    for flags in (("--class", "node"), ("--predictor", "percentile")):
        assert "for batch" not in text(*flags)
    mid = text("--tier", "mid", "--resource", "cpu")
    parts = ("cpu for mid", "cpu of node", "for batch", "memory")
    assert [words for words in parts if words in mid] == ["cpu for mid"]
    assert shown("--tier", "batch")["batch_terms"]["capacity"]
    run = CliRunner().invoke(cli, ["explain", "n", "--tier", "mid", "--class", "prod"])
    assert (run.exit_code, "--tier excludes --class and --predictor" in run.output) == (2, True)


@pytest.mark.usefixtures("published")
def test_explain_names_pods_in_text_adds_uids_in_wide_and_keeps_them_in_json() -> None:
    named, unknown = PREDICTION.pods.uid

    shown_words = set(text().replace(",", " ").replace(":", " ").split())
    assert {"shop/web-0", unknown} <= shown_words
    assert named not in shown_words
    assert f"shop/web-0 ({named})" in text("-o", "wide")
    assert shown()["pods"]["uid"] == [named, unknown]


def test_explain_names_an_unavailable_broker_with_a_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # no local broker of the user
    run = CliRunner().invoke(cli, ["explain", "node-1", "--bootstrap-servers", "127.0.0.1:1"])
    assert run.exit_code == 1
    error, fix = run.stderr.splitlines()
    assert error.startswith("error: checking topics: no broker answers at 127.0.0.1:1")
    assert "springtide kafka start" in fix


async def test_an_invalid_newest_record_is_named_with_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def invalid(*_: object) -> Found:
        return Found(b"node-1", b"\xff{", 7)

    async def require(*_: object) -> None:
        pass

    monkeypatch.setattr(explain, "newest", invalid)
    monkeypatch.setattr(explain, "require_topics", require)
    for read, topic in ((explain.read_records, "predictions"), (explain.read_offers, "resources")):
        with pytest.raises(InvalidRecordError, match=rf"{topic} \(offset 7\) is invalid"):
            await read(KafkaSettings(), "node-1")


@pytest.mark.parametrize(
    ("near", "hint"),
    [
        (["node-1", "node-2"], "did you mean node-1, node-2?"),
        (["NODE-1"], "the node reports windows"),
        ([], "`springtide top` lists"),
    ],
)
async def test_missing_prediction_has_a_hint(
    near: list[str], hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def names_near(*_: object) -> list[str]:
        return near

    monkeypatch.setattr(node_errors, "names_near", names_near)
    error = await node_errors.missing_record_error(KafkaSettings(), "NODE-1", "prediction")
    assert "no prediction of node 'NODE-1'" in error.message
    assert (error.hint or "").startswith(hint)
