"""What the extender refuses to start with."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli
from pipeline.table import Table
from pipeline.table.table_snapshot import copied, is_ours, save


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


def test_a_snapshot_overwrites_nothing_else(tmp_path: Path) -> None:
    notes, archive = tmp_path / "notes.txt", tmp_path / "arrays.npz"
    notes.write_text("mine")
    np.savez(archive, mine=np.arange(3))
    for taken, says in (
        (notes, "is there and is no snapshot"),
        (archive, "is there and is no snapshot"),
        (tmp_path, "cannot be read: Is a directory"),
    ):
        ran = CliRunner().invoke(cli, ["extender", "--port", "0", "--snapshot-file", str(taken)])
        assert ran.exit_code == 2
        assert says in ran.stderr
    assert notes.read_text() == "mine"


def save_whole(folder: Path) -> Path:
    file = folder / "whole.npz"
    save(file, copied(Table(), [], 0.0))
    return file


def test_a_snapshot_and_an_empty_file_may_be_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "table.npz"
    file.touch()
    assert is_ours(file)
    save(file, copied(Table(), [], 0.0))
    assert is_ours(file)
    file.write_bytes(file.read_bytes()[:200])
    assert is_ours(file)
    with np.load(whole := save_whole(tmp_path)) as found:
        members = {name: found[name] for name in reversed(found.files)}
    np.savez(whole, **members)
    assert is_ours(whole)
