"""`springtide plan` refuses policies; for plans see tests/extender/test_relief_planning.py."""

from pathlib import Path

from click.testing import CliRunner, Result

from pipeline.cli.main import cli

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
    assert (result.exit_code, "has no DeschedulerConfiguration" in result.stderr) == (1, True)


def test_policy_of_another_descheduler_is_named_as_such(tmp_path: Path) -> None:
    result = run(tmp_path / "a.yaml", f"{HEAD}DeschedulerPolicy\n")
    assert result.exit_code == 1
    assert "kind is DeschedulerPolicy, of kubernetes-sigs/descheduler" in result.stderr
