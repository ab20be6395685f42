"""`python -m tests.vectors [FILE...]`: run vector files, all of tests/data if none is named;
print each group, exit 1 on a mismatch."""

import sys
from pathlib import Path

from tests.vectors.runner import load_adapters, report, run_file

# From a checkout that is not installed, too; pytest does the same by its `pythonpath`.
sys.path.append(str(Path(__file__).parents[2] / "node-exporter"))


COPIES = Path(__file__).parents[1] / "data" / "vectors"


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    adapters = load_adapters()
    failed = False
    for argument in arguments or sorted(map(str, COPIES.glob("*.json"))):
        try:
            result = run_file(Path(argument), adapters)
        except (OSError, ValueError) as error:
            print(f"{argument}: not a vector file: {error}", file=sys.stderr)
            return 2
        print(report(argument, result))
        failed = failed or result.mismatches > 0
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
