"""The checker of language finds what it bans and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.language import ROOT, findings, subject_problem


def problems(name: str, text: str) -> list[str]:
    return [problem for _, problem in findings(Path(name), text)]


@pytest.mark.parametrize(
    "text",
    [
        "whoever reads this", "an annotation of no use", "The operator is told of it",
        "Owes the rest: nothing", "Raises for what is none", "row NP-37", "see colocation 17.2",
        "the topic is made anew", " ".join(["word"] * 30), "  | role | reads | |---|---| | a | b |",
    ],
)  # fmt: skip
def test_banned_text_is_found(text: str) -> None:
    assert len(problems("page.md", text)) == 1


@pytest.mark.parametrize(
    "text",
    ["| " + "cell | " * 40, "```\n" + "x " * 80 + "\n```", "# " + "heading " * 20,
     "the operator told us", "KEP-1234", "colocation profile", "NP and K8s"],
)  # fmt: skip
def test_plain_text_tables_and_code_pass(text: str) -> None:
    assert problems("page.md", text) == []


def test_long_lines_of_code_are_left_to_ruff() -> None:
    assert problems("module.py", "x" * 200 + " = 1") == []


@pytest.mark.parametrize(
    ("message", "is_good"),
    [
        ("Follow topics in one place\n\nThe body may be longer.", True),
        ("x" * 72, True), ("x" * 73, False), ("", False), ("Ends with a period.", False),
    ],
)  # fmt: skip
def test_subjects_of_commits_are_short(message: str, is_good: bool) -> None:
    assert (subject_problem(message) is None) == is_good


@pytest.mark.parametrize(("subject", "code"), [("Short", 0), ("long " * 20, 1)])
def test_the_commit_hook_refuses_long_subjects(tmp_path: Path, subject: str, code: int) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(subject.strip() + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.language", "--commit-message", str(file)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code
    assert ("72 at most" in done.stderr) == bool(code)
