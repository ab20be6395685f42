"""`python -m tests.vectors FILE...`: run vector files, print each group, exit 1 on a mismatch."""

import sys
from pathlib import Path

from tests.vectors.runner import load_adapters, report, run_file

# From a checkout that is not installed, too; pytest does the same by its `pythonpath`.
sys.path.append(str(Path(__file__).parents[2] / "node-exporter"))


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m tests.vectors FILE...", file=sys.stderr)
        return 0 if arguments else 2
    adapters = load_adapters()
    failed = False
    for argument in arguments:
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
