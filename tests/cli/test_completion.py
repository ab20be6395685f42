"""Completion in a real shell, and the manual page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.main import COMMANDS, cli
from pipeline.cli.man_page import man_page

_SECONDS = 120.0
_BASH = """
source <(springtide completion bash)
COMP_WORDS=(springtide {words}) COMP_CWORD={index}
_springtide_completion springtide
echo "${{COMPREPLY[@]}}"
"""


def completed(*words: str) -> list[str]:
    """What bash offers for the last of these words."""
    script = _BASH.format(words=" ".join(words), index=len(words))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shown = subprocess.run(
        ["bash", "-c", script], env=os.environ | {"PATH": path}, check=True, capture_output=True,
        text=True, timeout=_SECONDS,
    )  # fmt: skip
    return shown.stdout.split()


def test_bash_completes_commands_and_flags() -> None:
    assert completed("wo") == ["worker"]
    assert completed("exporter", "--cgroup-p") == ["--cgroup-parent"]
    assert completed("top", "--ssl-ca") == ["--ssl-ca-file"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_that_calls_springtide(shell: str) -> None:
    shown = CliRunner().invoke(cli, ["completion", shell])
    assert shown.exit_code == 0
    assert f"_SPRINGTIDE_COMPLETE={shell}_complete" in shown.output


def test_names_are_completed_without_an_import_of_commands() -> None:
    code = (
        "import sys, pipeline.cli.main as main, click\n"
        "items = main.cli.shell_complete(click.Context(main.cli), '')\n"
        "print(len(items), 'numpy' in sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=_SECONDS
    )
    assert shown.stdout.split() == [str(len(COMMANDS)), "False"]


def test_the_manual_page_has_every_command_and_no_stray_request() -> None:
    page = man_page()
    for name in COMMANDS:
        escaped = name.replace("-", "\\-")
        assert f".SS springtide {escaped}\n" in page
    assert ".SS springtide topics strimzi\n" in page
    requests = set(re.findall(r"^([.'].*?)(?: .*)?$", page, re.MULTILINE))
    assert requests == {".TH", ".SH", ".SS", ".B", ".nf", ".fi"}
