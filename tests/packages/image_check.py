"""`make image-check`: build both images twice, compare them, and run them.

The second build has an empty store and another directory. As the image's user every role of it
prints its help. Prints id and size of each image; exits with 1 if two builds differ.
"""

import sys
import tempfile
from pathlib import Path

from pipeline.cli.main import COMMANDS
from pipeline.topics.access import ROLES
from tests.debian_packages import UnavailableError
from tests.packages.images import USER, image_store, make_context, wheels_of

_ROLES = [name for name in COMMANDS if name in {*ROLES, "webhook"}]
TARGETS = {"exporter": ["exporter"], "springtide": _ROLES}
# Prints the user and the first word of each help.
_HELP = """
import os, subprocess, sys
helps = [subprocess.check_output(["springtide", role, "--help"]) for role in sys.argv[1:]]
print(f"{os.getuid()}:{os.getgid()}", *(text.split()[0].decode() for text in helps))
"""


def check_image(target: str) -> bool:
    """Build a target twice; returns whether the images are equal."""
    built = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder, image_store() as images:
            built.append(images.build(target, make_context(Path(folder)), wheels_of(target)))
            printed = images.run(target, "python", "-c", _HELP, *TARGETS[target]).split()
            assert printed == [USER, *["Usage:"] * len(TARGETS[target])], printed
            lines = images.call("images", "--format={{.Name}} {{.Size}}").splitlines()
    (size,) = (line.split(" ", 1)[1] for line in lines if line.startswith(f"localhost/{target} "))
    same = built[0] == built[1]
    verdict = "equal" if same else f"NOT equal: {built[1]}"
    sys.stdout.write(f"{target:12} {size:>10}  {built[0]}  second build: {verdict}\n")
    sys.stdout.flush()
    return same


def main() -> None:
    try:
        results = [check_image(target) for target in TARGETS]
    except UnavailableError as error:
        sys.exit(str(error))
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
