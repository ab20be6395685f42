"""Containers of the chart, run without a container runtime, with the rights that the chart gives
and no others.

A container has a mount namespace with a root of its own, a process namespace unless its pod has
`hostPID`, its capabilities and `no_new_privs`. Its image is this machine's /usr with the project.
It shares the network and, other than in a cluster, is not filtered by seccomp.
"""

import functools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.local.process_guard import die_with_parent
from tests.deploy.helm import object_of, pods_of, rendered
from tests.processes import ROOT

# $1 is an empty directory, $2 whether it is read-only, $3 the capabilities; then come triples of
# source, target and ro or rw, up to a word --, and the command.
_SCRIPT = """
set -e
root=$1 read_only=$2 capabilities=$3
shift 3
mount -t tmpfs tmpfs "$root"
mkdir "$root/etc" "$root/proc" "$root/tmp"
cp -L /etc/passwd /etc/group /etc/hosts /etc/ld.so.cache "$root/etc/"
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$(dirname "$root$2")"; : > "$root$2"; fi
    mount --rbind "$1" "$root$2"
    [ "$3" = rw ] || mount -o remount,bind,ro "$root$2"
    shift 3
done
shift
[ "$read_only" = no ] || mount -o remount,ro "$root"
exec chroot "$root" setpriv --bounding-set="$capabilities" --inh-caps=-all --ambient-caps=-all \
    --no-new-privs "$@"
"""
_IMAGE = ("/usr", "/bin", "/lib", "/lib64", "/dev")


@functools.cache
def _objects() -> list[Any]:
    return rendered()


def pod_of(role: str) -> Any:
    """The pod of a role in the chart, with default values."""
    return pods_of(_objects())[role]


def settings_text(role: str) -> str:
    """The settings file of a role in the chart, with default values."""
    config_map = object_of(_objects(), "ConfigMap", f"springtide-{role}")
    return str(config_map["data"]["springtide.yaml"])


def start_container(
    pod: Mapping[str, Any],
    volumes: Mapping[str, Path],
    variables: Mapping[str, str],
    folder: Path,
) -> subprocess.Popen[bytes]:
    """Start the only container of a pod. `volumes` has what stands for its volumes; `variables` are
    set beside those of the manifest, and have the values of those that refer to fields. The log is
    `folder`/NAME.log."""
    (container,) = pod["containers"]
    root = folder / f"root-of-{container['name']}"
    root.mkdir()
    security = container["securityContext"]
    assert security["runAsUser"] == 0
    assert not security["allowPrivilegeEscalation"]
    added = security["capabilities"].get("add", [])
    capabilities = ",".join(["-all", *(f"+{name.lower()}" for name in added)])
    image_paths = [path for path in _IMAGE if Path(path).exists()]
    mounts = [(path, path, "ro") for path in (*image_paths, sys.base_prefix, str(ROOT))]
    for mount in container["volumeMounts"]:
        access = "ro" if mount.get("readOnly") else "rw"
        mounts.append((str(volumes[mount["name"]]), mount["mountPath"], access))
    stated = {env["name"]: env["value"] for env in container["env"] if "value" in env}
    image = {
        "PATH": f"{ROOT}/.venv/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    namespaces = ["--mount", "--propagation=private"]
    namespaces += [] if pod.get("hostPID") else ["--pid", "--fork", "--kill-child"]
    read_only = "yes" if security["readOnlyRootFilesystem"] else "no"
    with (folder / f"{container['name']}.log").open("ab") as log:
        return subprocess.Popen(
            ["unshare", *namespaces, "--", "sh", "-c", _SCRIPT, "sh", str(root), read_only,
             capabilities, *(word for mount in mounts for word in mount), "--",
             *container["command"]],
            stdout=log, stderr=log, env={**image, **stated, **variables},
            preexec_fn=die_with_parent,
        )  # fmt: skip
