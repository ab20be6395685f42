"""`python -m pipeline.local.plane`: a local control plane for as long as it is wanted.

Prints what a shell needs to speak to it, and waits; with Ctrl-C, or SIGTERM, all of it is gone.
"""

import signal
import sys
import threading

from pipeline.local.build_programs import ensure_programs
from pipeline.local.control_plane import local_control_plane


def main() -> None:
    """Start one, say how to reach it, and end it on a signal."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    folder = ensure_programs()["kubectl"].parent
    with local_control_plane() as plane:
        sys.stdout.write(f'export KUBECONFIG={plane.kubeconfig()} PATH="{folder}:$PATH"\n')
        sys.stdout.flush()
        sys.stderr.write(
            "a control plane runs; paste that line into another shell, Ctrl-C ends it\n"
        )
        ended.wait()


if __name__ == "__main__":
    main()
