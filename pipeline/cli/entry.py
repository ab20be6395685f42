"""The script `springtide`: an interrupt leaves no traceback, even while the rest is loaded."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Load the command line, and run it."""
    try:
        from pipeline.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    run()
