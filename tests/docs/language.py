"""Check documents and source for line length, broken tables, banned phrases and ids without a list.

    python -m tests.docs.language [PATH ...]              # all tracked files by default
    python -m tests.docs.language --commit-message FILE   # the commit-msg hook

Prints one line per finding, `path:line: what`, and exits with 1 if there is any.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINE_LENGTH = 100
SUBJECT_LENGTH = 72

# Phrases that a reader has to translate, and what to write instead.
PHRASES = {
    r"whoever|whomever": "name the agent",
    r"as whom": "name the identity or the credentials",
    r"of no use": "invalid, unusable",
    r"(?:is|are|was|were|be|being) told (?:of|by|to|in|as|when|where)": "reported, logged",
    r"says? of": "reports about",
    r"what is none\b": "invalid, missing",
    r"takes? (?:\w+ )?for none": "ignores",
    r"owes? the rest": "state what the module does",
    r"that of which|those of which|those that are none": "name the thing",
    r"is said so|said so\b": "reported",
    r"nobody asks|anybody asks": "name the agent",
    r"made anew|begins? anew|start(?:s|ed)? anew": "recreated, restarted",
    r"the one that|the ones that": "name the thing",
    r"\d+(?:\.\d+)? %(?=$|[.,;:)\"'`]| of\b| and\b)": "a percent sign follows its number: 80%",
}  # fmt: skip
_PHRASE = re.compile("|".join(f"(?P<p{i}>\\b(?:{p}))" for i, p in enumerate(PHRASES)), re.I)
_ADVICE = list(PHRASES.values())

# Ids of lists that are not in this repository.
_ID = re.compile(
    r"\b(?:NP|LA|TR|PS|K\d\d)-\d{2}\b"
    r"|\b(?:colocation|scheduling|descheduling|node-qos|ecosystem) \d+(?:\.\d+)*\b"
)

# The rule below a table's header, in the middle of a line: rows of a table were joined.
_JOINED_ROWS = re.compile(r"\|[ ]+\|-{3}")

PROSE = {".md"}
CODE = {".py", ".yaml", ".toml", ".c", ".go"}
# They have to name what they look for.
EXEMPT = {Path(__file__), Path(__file__).with_name("test_language.py")}
_RECORDED = ROOT / "tests" / "data"


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines of a Markdown text outside of fenced blocks."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def is_wrappable(line: str) -> bool:
    """Whether a long line could be broken: code, table rows, headings and lone links cannot."""
    is_code = line.startswith("    ")
    return not is_code and not line.lstrip().startswith(("|", "#")) and len(line.split()) > 2


def findings(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and what is wrong there."""
    is_prose = path.suffix in PROSE
    lines = prose_lines(text) if is_prose else enumerate(text.splitlines(), start=1)
    for number, line in lines:
        if is_prose and len(line) > LINE_LENGTH and is_wrappable(line):
            yield number, f"{len(line)} characters, {LINE_LENGTH} at most"
        if is_prose and _JOINED_ROWS.search(line):
            yield number, "rows of a table on one line"
        for match in _PHRASE.finditer(line):
            advice = _ADVICE[int(str(match.lastgroup)[1:])]
            yield number, f"phrase {match[0]!r}: {advice}"
        for match in _ID.finditer(line):
            yield number, f"id {match[0]!r} of a list that is not in the repository"


def subject_problem(message: str) -> str | None:
    """What is wrong with the subject of a commit message; None if nothing is."""
    subject = message.split("\n", 1)[0]
    if not subject.strip():
        return "the subject is empty"
    if len(subject) > SUBJECT_LENGTH:
        return f"the subject has {len(subject)} characters, {SUBJECT_LENGTH} at most: {subject}"
    if subject.endswith("."):
        return f"the subject ends with a period: {subject}"
    return None


def tracked_files() -> list[Path]:
    """Files that git tracks and that hold prose or code."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.suffix in PROSE | CODE and path.exists()]


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--commit-message"]:
        problem = subject_problem(Path(arguments[1]).read_text())
        if problem:
            sys.stderr.write(f"commit message: {problem}\n")
        return int(problem is not None)
    paths = [Path(name).resolve() for name in arguments] or tracked_files()
    count = 0
    for path in paths:
        if path in EXEMPT or path.is_relative_to(_RECORDED):
            continue
        for number, problem in findings(path, path.read_text()):
            count += 1
            sys.stdout.write(f"{path.relative_to(ROOT)}:{number}: {problem}\n")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
