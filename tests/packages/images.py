"""Build the images of deploy/image/Containerfile with buildah, and run what is in them; as root.

Neither a registry of images nor an installed builder is needed: buildah and the base image, with a
Python of this Debian, are unpacked from packages into the cache (`tests.debian_packages`), and the
wheels that the locks pin are mounted into the build. Everything else is as users build it.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.local.cache_folders import print_to_stderr
from tests.debian_packages import Apt, UnavailableError, ensure_fetched
from tests.packages.wheels import build_distribution, pinned_wheels
from tests.processes import ROOT

CONTAINERFILE: Final = "deploy/image/Containerfile"
BASE: Final = "localhost/base"
USER: Final = "10001:10001"
_EPOCH: Final = 1_700_000_000
_SECONDS: Final = 3600.0
_WHAT: Final = "buildah and a base image for tests of images; takes half a minute, 60 MB"
_PIP: Final = "[install]\nno-index = true\nfind-links = /wheels\n"
# $1 is the tree of buildah's package: in a mount namespace it is laid over /usr, because buildah
# starts itself without the variables by which it would find its libraries elsewhere.
_SCRIPT: Final = """
set -e
[ ! -d "$1/usr" ] || mount -t overlay overlay -o "lowerdir=$1/usr:/usr" /usr
shift
exec "$@"
"""
# $1 are buildah's words before each command, $2 the image; what follows runs in a container of it,
# as the image's user, with a root that has no shell.
_RUN: Final = """
set -e
buildah=$1
container=$($buildah from --pull-never "$2")
trap '$buildah rm "$container" >/dev/null' EXIT
shift 2
root=$($buildah mount "$container")
rm -f "$root"/usr/bin/sh "$root"/usr/bin/dash "$root"/usr/bin/bash
$buildah run --isolation chroot "$container" -- "$@"
"""


@dataclass(frozen=True)
class Images:
    """A store of images, in a temporary directory."""

    builder: Path
    folder: Path

    @property
    def _buildah(self) -> list[str]:
        containers = self.builder / "buildah/etc/containers"
        files = containers if containers.is_dir() else Path("/etc/containers")
        store = [f"--root={self.folder}/store", f"--runroot={self.folder}/run"]
        return ["buildah", *store, "--storage-driver=overlay",
                f"--registries-conf={files}/registries.conf"]  # fmt: skip

    def call(self, *arguments: str) -> str:
        """Run a command of buildah; returns what it prints. Raises CalledProcessError."""
        return self._in_namespace(*self._buildah, *arguments)

    def _in_namespace(self, *command: str) -> str:
        completed = subprocess.run(
            ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", str(self.builder / "buildah"),
             *command],
            cwd=ROOT, env=os.environ | {"XDG_RUNTIME_DIR": str(self.folder)}, check=False,
            capture_output=True, text=True, timeout=_SECONDS,
        )  # fmt: skip
        if completed.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {completed.stderr[-4000:]}")
        return completed.stdout

    def make_base(self) -> None:
        """Make the base image of the unpacked packages."""
        container = self.call("from", "scratch").strip()
        self.call("add", "--quiet", container, str(self.builder / "base"), "/")
        self.call("commit", "--quiet", "--timestamp=0", self._policy, container, BASE)
        self.call("rm", container)

    @property
    def _policy(self) -> str:
        policy = self.builder / "buildah/etc/containers/policy.json"
        return f"--signature-policy={policy if policy.exists() else '/etc/containers/policy.json'}"

    def build(self, target: str, context: Path, wheels: Path) -> str:
        """Build a target of the Containerfile in the directory `context`; returns the image's id,
        which is the hash of everything in it."""
        pip = self.folder / "pip.conf"
        pip.write_text(_PIP)
        return self.call(
            "build", "--isolation=chroot", "--pull-never", "--layers=false", "--quiet",
            f"--timestamp={_EPOCH}", self._policy, f"--build-arg=BASE_IMAGE={BASE}",
            f"--volume={pip}:/etc/pip.conf:ro", f"--volume={wheels}:/wheels:ro",
            f"--target={target}", f"--tag=localhost/{target}", f"--file={ROOT / CONTAINERFILE}",
            str(context),
        ).strip()  # fmt: skip

    def inspect(self, target: str) -> Any:
        """The configuration of an image."""
        return json.loads(self.call("inspect", "--type=image", f"localhost/{target}"))["OCIv1"]

    def run(self, target: str, *command: str) -> str:
        """Run a command in a container as the image's user, without a shell; returns its output."""
        words = " ".join(self._buildah)
        return self._in_namespace("sh", "-c", _RUN, "sh", words, f"localhost/{target}", *command)


@contextmanager
def image_store() -> Iterator[Images]:
    """A store with the base image. Raises `UnavailableError` if this machine cannot have one."""
    if os.geteuid() != 0:
        raise UnavailableError("images are built by root")
    builder = ensure_fetched("images", __file__, _WHAT, _fetch, print_to_stderr)
    folder = Path(tempfile.mkdtemp(prefix="images-"))
    try:
        images = Images(builder, folder)
        images.make_base()
        yield images
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_context(folder: Path) -> Path:
    """Make a directory with all that the Containerfile copies, as `make dist` leaves a checkout."""
    build_distribution(ROOT, folder / "dist", _EPOCH)
    for lock in ROOT.glob("requirements-*.lock"):
        shutil.copy(lock, folder)
    return folder


def wheels_of(target: str) -> Path:
    """The wheels that a target installs."""
    return pinned_wheels("exporter" if target == "exporter" else "pipeline")


def _fetch(scratch: Path, folder: Path) -> str:
    apt = Apt(scratch)
    apt.unpack("buildah", with_dependencies=True).rename(folder / "buildah")
    # numpy needs libstdc++, which each Debian has, because apt needs it.
    packages = ("base-files", "dash", "libstdc++6", "python3", "python3-pip")
    apt.unpack_root(*packages).rename(folder / "base")
    return "buildah, Python"
