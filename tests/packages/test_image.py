"""The exporter's image, built from the Containerfile as users build it, and run without a shell.

The image of all roles is built the same way by `make image-check`, which takes minutes.
"""

import re
from collections.abc import Iterator

import pytest

from pipeline import __version__
from tests.debian_packages import UnavailableError
from tests.machine import not_here
from tests.packages.images import USER, Images, image_store, make_context, wheels_of
from tests.processes import ROOT

pytestmark = pytest.mark.slow

REQUIRE_IMAGES = "REQUIRE_CGROUPS"
"""Where cgroups can be made, images can be built: as root."""


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
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert images.run("exporter", "springtide", "--version").split()[:2] == [
        "springtide", __version__,
    ]  # fmt: skip
    window = images.run("exporter", "springtide", "exporter", "--once", "--window-seconds", "1")
    assert window.startswith('{"kind":"header"')
    code = "import os; print(os.getuid(), os.path.exists('/bin/sh'))"
    assert images.run("exporter", "python", "-c", code).split() == [USER.split(":")[0], "False"]


def test_the_image_has_what_the_lock_pins_and_no_installer(images: Images) -> None:
    code = "from importlib.metadata import distributions as d; print(*{x.name for x in d()})"
    names = images.run("exporter", "python", "-c", code).split()
    lock = (ROOT / "requirements-exporter.lock").read_text()
    pinned = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    own = {name.lower().replace("_", "-") for name in names}
    # The base image's Python may have an installer, which this environment does not see.
    assert own == pinned | {"springtide"}
