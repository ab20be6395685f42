"""`python -m pipeline.local.plane`: run a local control plane until Ctrl-C or SIGTERM.

Prints a line that sets KUBECONFIG and PATH in a shell.
"""

import signal
import sys
import threading

from pipeline.local.build_programs import ensure_programs
from pipeline.local.control_plane import local_control_plane


def main() -> None:
    """Start a control plane, print how to connect, and close it on a signal."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    folder = ensure_programs()["kubectl"].parent
    with local_control_plane() as plane:
        sys.stdout.write(f'export KUBECONFIG={plane.kubeconfig()} PATH="{folder}:$PATH"\n')
        sys.stdout.flush()
        sys.stderr.write(
            "the control plane is ready: paste this line into another shell; Ctrl-C ends it\n"
        )
        ended.wait()


if __name__ == "__main__":
    main()
