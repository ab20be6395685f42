"""Run vector files: `python -m tests.vectors [FILE...]`, by default the copies in tests/data.

Prints each group and ends with 1 on a mismatch, with 2 for a file that is not a vector file.
"""

import sys
from pathlib import Path

from tests.vectors.report import report
from tests.vectors.runner import load_groups, run_file

# For a checkout that is not installed; pytest does the same by its `pythonpath`.
sys.path.append(str(Path(__file__).parents[2] / "node-exporter"))


COPIES = Path(__file__).parents[1] / "data" / "vectors"


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    groups = load_groups()
    failed = False
    for argument in arguments or sorted(map(str, COPIES.glob("*.json"))):
        try:
            results = run_file(Path(argument), groups)
        except (OSError, ValueError) as error:
            print(f"{argument}: not a vector file: {error}", file=sys.stderr)
            return 2
        print(report(argument, results))
        failed = failed or any(result.mismatches for result in results)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
