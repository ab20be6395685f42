"""The picture in the reference of backtests is that of its sample."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli

REFERENCE = Path(__file__).parents[2] / "docs/reference/backtest.md"


def test_the_picture_of_the_reference_is_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    block = re.search(r"^```sh\n(.*?)^```", REFERENCE.read_text(), re.M | re.S)
    assert block
    script, _, rest = block[1].partition("python - <<'END'\n")[2].partition("END\n")
    (tmp_path / "traces").mkdir()
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    (command,) = re.findall(r"^springtide (.*)$", rest, re.M)
    result = CliRunner().invoke(cli, command.split())
    assert result.exit_code == 0, result.output
    figures = re.findall(r"<figure>(.*?)</figure>", Path("report.html").read_text(), re.S)
    picture = next(figure for figure in figures if "<title>worst: n1</title>" in figure)
    assert REFERENCE.with_name("backtest-node.svg").read_text() == picture
