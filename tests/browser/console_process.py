"""An extender with a simulated table, as a process of its own that a test can kill.

python -m tests.browser.console_process PORT
"""

import sys

from aiohttp import web

from tests.browser.test_console import simulated


def main() -> None:
    of, _, _ = simulated(300)
    web.run_app(of.app(), host="127.0.0.1", port=int(sys.argv[1]), print=None)


if __name__ == "__main__":
    main()
