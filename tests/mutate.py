"""Mutation tests: change one line of the product at a time and run the tests that should fail.

`python -m tests.mutate [--seed N] [--count N] [--jobs N] [PATH...]` picks random places in the
source and changes comparisons, arithmetic, constants, conditions or returned values in a copy of
the tree. It runs the tests of the module, then of its package and the vectors, and prints the
changes that survived: a gap in the tests, or a change without effect. The working tree is never
touched. Exits with 1 if the tests fail without any change.
"""

import argparse
import ast
import copy
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Final, NamedTuple, TypeVar

_Node = TypeVar("_Node", bound=ast.AST)

ROOT: Final = Path(__file__).parent.parent
DEFAULT_PATHS: Final = ("pipeline/processors", "pipeline/topics")
TIMEOUT_SECONDS: Final = 200
_COPIED: Final = (
    "pipeline", "node-exporter", "actuators", "tests", "docs", "deploy", "pyproject.toml",
)  # fmt: skip
_IGNORED: Final = shutil.ignore_patterns("__pycache__", ".hypothesis", "integration", "system")

_NOT_CODE: Final = ("annotation", "returns", "decorator_list")

_OPERATORS: Final[dict[type[ast.AST], tuple[type[ast.AST], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,), ast.Mod: (ast.Mult,), ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
_NAMES: Final = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum",
    "any": "all", "all": "any", "floor": "ceil", "ceil": "floor", "trunc": "rint",
}  # fmt: skip


class Mutant(NamedTuple):
    """One change; `source` is the whole file with the change."""

    path: Path
    line: int
    change: str
    source: str


def mutants_of(path: Path) -> list[Mutant]:
    """All possible changes to a file."""
    source = path.read_text()
    mutants = []
    for node in _code(ast.parse(source)):
        for changed in _changes(node):
            before, after = ast.unparse(node), ast.unparse(changed)
            text = _replaced(source, node, after if isinstance(node, ast.stmt) else f"({after})")
            try:
                compile(text, str(path), "exec")
            except SyntaxError:
                continue
            mutants.append(Mutant(path, node.lineno, f"{before}  ->  {after}", text))
    return mutants


def _code(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Code that runs: no annotations, decorators, class options or f-strings."""
    for name, value in ast.iter_fields(tree):
        if name in _NOT_CODE or isinstance(tree, ast.JoinedStr):
            continue
        if name == "keywords" and isinstance(tree, ast.ClassDef):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                if isinstance(child, (ast.expr, ast.stmt)):
                    yield child
                yield from _code(child)


def _changes(node: ast.expr | ast.stmt) -> Iterator[ast.expr | ast.stmt]:
    match node:
        case ast.Compare(ops=[operator]):
            for other in _OPERATORS.get(type(operator), ()):
                yield _with(node, ops=[other()])
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) | ast.AugAssign(op=operator):
            for other in _OPERATORS.get(type(operator), ()):
                yield _with(node, op=other())
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield _with(node, value=not node.value)
        case ast.Constant(value=int() | float() as number):
            yield _with(node, value=number + 1)
            yield _with(node, value=number - 1)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield _with(node, value=ast.Constant(None))
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            yield _with(node, func=ast.Name(_NAMES[name]))
        case ast.Call(func=ast.Attribute(attr=name)) if name in _NAMES:
            yield _with(node, func=_with(node.func, attr=_NAMES[name]))
        case ast.Call(func=ast.Attribute(attr="where"), args=[test, yes, no]):
            yield _with(node, args=[test, no, yes])


def _with(node: _Node, **fields: object) -> _Node:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _replaced(source: str, node: ast.expr | ast.stmt, text: str) -> str:
    data = source.encode()
    starts = [0, *itertools.accumulate(len(line) for line in data.splitlines(keepends=True))]
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    return (data[:start] + text.encode() + data[end:]).decode()


def runs_for(path: Path) -> list[list[str]]:
    """Tests to run for a source file, in order: of its module, of its package and the vectors."""
    folder = Path("tests") / path.relative_to(ROOT / "pipeline").parent
    mirror = folder / f"test_{path.stem}.py"
    package = [str(folder), "tests/vectors"]
    return [[str(mirror)], package] if (ROOT / mirror).exists() else [package]


def failure(tree: Path, tests: Sequence[str]) -> str | None:
    """The output of the first failing test in `tree`; None if all pass. A timeout is a failure."""
    command = [
        sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
        "--hypothesis-seed=0", *tests,
    ]  # fmt: skip
    try:
        process = subprocess.run(
            command, cwd=tree, capture_output=True, timeout=TIMEOUT_SECONDS, check=False,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end after {TIMEOUT_SECONDS} s"
    return process.stdout.decode(errors="replace") if process.returncode else None


def survives(mutant: Mutant, tree: Path) -> bool:
    """Whether no test fails with the change; `tree` is restored afterwards."""
    file = tree / mutant.path.relative_to(ROOT)
    original = file.read_bytes()
    file.write_text(mutant.source)
    try:
        return all(failure(tree, tests) is None for tests in runs_for(mutant.path))
    finally:
        file.write_bytes(original)


def copy_tree(to: Path) -> Path:
    """Copy the files that the tests need."""
    for name in _COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=_IGNORED)
        else:
            shutil.copy(ROOT / name, to / name)
    return to


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60, help="number of changes")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument(
        "paths", nargs="*", default=DEFAULT_PATHS, help="files or folders below pipeline/"
    )
    options = parser.parse_args(arguments)
    files = sorted(
        file
        for path in map(ROOT.joinpath, options.paths)
        for file in (path.rglob("*.py") if path.is_dir() else [path])
    )
    possible = [mutant for file in files for mutant in mutants_of(file)]
    chosen = random.Random(options.seed).sample(possible, min(options.count, len(possible)))
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        trees: Queue[Path] = Queue()
        for job in range(options.jobs):
            trees.put(copy_tree(Path(folder, str(job))))

        def in_a_tree(mutant: Mutant) -> bool:
            tree = trees.get()
            try:
                return survives(mutant, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(options.jobs) as pool:
            packages = {test for mutant in chosen for test in runs_for(mutant.path)[-1]}
            if red := failure(Path(folder, "0"), sorted(packages)):
                write(f"{red[-2000:]}\nthe tests fail without any change: fix them first")
                return 1
            survivors = 0
            for mutant, survived in zip(chosen, pool.map(in_a_tree, chosen), strict=True):
                survivors += survived
                verdict = "SURVIVED" if survived else "killed  "
                where = f"{mutant.path.relative_to(ROOT)}:{mutant.line}"
                write(f"{verdict} {where}  {mutant.change}")
    write(
        f"{len(chosen)} of {len(possible)} changes: {len(chosen) - survivors} killed, "
        f"{survivors} survived (seed {options.seed})"
    )
    return 0


def write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
