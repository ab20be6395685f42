"""What the extender refuses to start with."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli


@pytest.mark.parametrize("file", ["file/table.npz", "/proc/none/table.npz"])
def test_a_snapshot_that_cannot_be_written_is_told_at_once(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    ran = CliRunner().invoke(cli, ["extender", "--port", "0", "--snapshot-file", file])
    assert ran.exit_code == 2
    assert "extender.snapshot_file: nothing can be written to" in ran.stderr
    assert "fix: name a file in a folder" in ran.stderr
