"""`springtide extender` refuses snapshot files that it cannot use."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli
from pipeline.table import Table
from pipeline.table.table_snapshot import copied, is_ours, save


@pytest.mark.parametrize("file", ["file/table.npz", "mistyped/table.npz", "/proc/none/table.npz"])
def test_snapshot_file_that_cannot_be_written_is_an_error_at_start(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    result = CliRunner().invoke(cli, ["extender", "--port", "0", "--snapshot-file", file])
    assert result.exit_code == 2
    assert "extender.snapshot_file: cannot read and write" in result.stderr
    assert "fix: give a file in an existing directory" in result.stderr
    assert not (tmp_path / "mistyped").exists()


def test_snapshot_file_that_is_another_file_is_not_overwritten(tmp_path: Path) -> None:
    notes, archive = tmp_path / "notes.txt", tmp_path / "arrays.npz"
    notes.write_text("mine")
    np.savez(archive, mine=np.arange(3))
    for path, message in (
        (notes, "exists and is not a snapshot"),
        (archive, "exists and is not a snapshot"),
        (tmp_path, "Is a directory"),
    ):
        result = CliRunner().invoke(cli, ["extender", "--port", "0", "--snapshot-file", str(path)])
        assert (result.exit_code, message in result.stderr) == (2, True)
    assert notes.read_text() == "mine"


def test_snapshots_and_empty_files_are_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "table.npz"
    file.touch()
    assert is_ours(file)
    save(file, copied(Table(), [], 0.0, {}))
    assert is_ours(file)
    with np.load(file) as archive:
        members = {name: archive[name] for name in reversed(archive.files)}
    file.write_bytes(file.read_bytes()[:200])
    assert is_ours(file)
    np.savez(file, **members)
    assert is_ours(file)
