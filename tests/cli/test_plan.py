"""`springtide plan` refuses policies, and says that it has no data; for plans see
tests/extender/test_relief_planning.py."""

from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pipeline.cli import plan
from pipeline.cli.main import cli
from pipeline.table import Table

HEAD = "apiVersion: descheduler/v1alpha2\nkind: "


def run(file: Path, text: str) -> Result:
    file.write_text(text)
    return CliRunner().invoke(cli, ["plan", "--policy", str(file)])


def test_file_without_a_strategy_is_refused_with_a_command_to_copy(tmp_path: Path) -> None:
    file = tmp_path / "my policy.yaml"
    result = run(file, f"{HEAD}DeschedulerConfiguration\n")
    assert result.exit_code == 1
    assert f"{file} has no strategy that is in force" in result.stderr
    assert f"check it with `springtide policy '{file}'`" in result.stderr


def test_file_without_a_descheduler_configuration_is_refused_as_such(tmp_path: Path) -> None:
    result = run(tmp_path / "a.yaml", "kind: Node\n")
    assert result.exit_code == 1
    assert "has no DeschedulerConfiguration: it has Node\n" in result.stderr
    assert "has no DeschedulerConfiguration: it is empty\n" in run(tmp_path / "a", "").stderr


def test_policy_of_another_descheduler_is_named_as_such(tmp_path: Path) -> None:
    result = run(tmp_path / "a.yaml", f"{HEAD}DeschedulerPolicy\n")
    assert result.exit_code == 1
    assert "kind is DeschedulerPolicy, of kubernetes-sigs/descheduler" in result.stderr


def test_without_data_nothing_is_planned_and_no_policy_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def read(*_: Any, **__: Any) -> Any:
        yield SimpleNamespace(table=Table())

    monkeypatch.setattr(plan, "read_table", read)
    low = "{name: LowNodeLoad, args: {highThresholds: {cpu: 70}}}"
    result = run(
        tmp_path / "a.yaml",
        f"{HEAD}DeschedulerConfiguration\nprofiles: [{{name: a, pluginConfig: [{low}]}}]\n",
    )
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith("error: no usage of any node is known")


def test_policy_is_read_from_standard_input() -> None:
    result = CliRunner().invoke(cli, ["plan", "--policy", "-"], input="kind: Node\n")
    assert result.stderr.startswith("error: standard input has no DeschedulerConfiguration")
