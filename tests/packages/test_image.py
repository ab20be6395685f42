"""The exporter's image, built from the Containerfile as users build it, and run without a shell.

The image of all roles is built the same way by `make image-check`, which takes minutes.
"""

import re
from collections.abc import Iterator

import pytest

from pipeline import __version__
from tests.debian_packages import UnavailableError
from tests.machine import not_here
from tests.packages.images import BASE, USER, Images, image_store, make_context, wheels_of
from tests.processes import ROOT

pytestmark = pytest.mark.slow

REQUIRE_IMAGES = "REQUIRE_CGROUPS"
"""Where cgroups can be made, images can be built: as root."""

# Prints how many files of others than root, setuid or setgid files, and files that all may write,
# /opt/springtide has.
_FILES = """
import os, stat
found = [os.lstat(os.path.join(folder, name))
         for folder, folders, files in os.walk("/opt/springtide") for name in folders + files]
assert len(found) > 1000
found = [each for each in found if not stat.S_ISLNK(each.st_mode)]
print(sum(each.st_uid + each.st_gid > 0 for each in found),
      sum(each.st_mode & 0o6000 > 0 for each in found),
      sum(each.st_mode & 0o002 > 0 for each in found))
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    try:
        with image_store() as images:
            context = make_context(tmp_path_factory.mktemp("context"))
            images.build("exporter", context, wheels_of("exporter"))
            yield images
    except UnavailableError as error:
        not_here(str(error), REQUIRE_IMAGES)


def test_the_image_runs_a_role_as_an_ordinary_user(images: Images) -> None:
    config = images.inspect("exporter")["config"]
    assert config["User"] == USER
    assert (config["Entrypoint"], config["Cmd"]) == (["springtide"], ["--help"])
    labels = {key.removeprefix("org.opencontainers.image."): config["Labels"][key]
              for key in config["Labels"]}  # fmt: skip
    assert (labels["title"], labels["licenses"]) == ("springtide", "Apache-2.0")
    assert (labels["version"], labels["base.name"]) == (__version__, BASE)
    assert images.run("exporter", "springtide", "--version").split()[:2] == [
        "springtide", __version__,
    ]  # fmt: skip
    window = images.run("exporter", "springtide", "exporter", "--once", "--window-seconds", "1")
    assert window.startswith('{"kind":"header"')
    code = "import os; print(os.getuid(), os.path.exists('/bin/sh'))"
    assert images.run("exporter", "python", "-c", code).split() == [USER.split(":")[0], "False"]


def test_nobody_else_may_change_the_image_or_become_root_in_it(images: Images) -> None:
    """What the Containerfile adds to the base image, and its environment."""
    assert images.run("exporter", "python", "-c", _FILES).split() == ["0", "0", "0"]
    code = "import shutil; print(*map(shutil.which, ('cc', 'gcc', 'make')))"
    assert images.run("exporter", "python", "-c", code).split() == ["None"] * 3


def test_the_image_has_what_the_lock_pins_and_no_installer(images: Images) -> None:
    code = "from importlib.metadata import distributions as d; print(*{x.name for x in d()})"
    names = images.run("exporter", "python", "-c", code).split()
    lock = (ROOT / "requirements-exporter.lock").read_text()
    pinned = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    own = {name.lower().replace("_", "-") for name in names}
    # The base image's Python may have an installer, which this environment does not see.
    assert own == pinned | {"springtide"}
