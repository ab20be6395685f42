"""Entry point of the `springtide` script: Ctrl-C prints no traceback, even during the imports."""

import sys

from pipeline.cli import INTERRUPTED


def main() -> None:
    try:
        from pipeline.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    run()
