"""The control plane starts as docs/how-to/run-a-local-control-plane.md documents it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.local.process_guard import die_with_parent
from tests.processes import command_lines, eventually

# Its programs may have to be built.
pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]


@contextmanager
def program() -> Iterator["subprocess.Popen[str]"]:
    """The program, as a user starts it."""
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'node-exporter'}"}
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline.local.control_plane"], env=os.environ | path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=die_with_parent,
    ) as process:  # fmt: skip
        yield process


def pid_of(name: str, folder: Path) -> int:
    """The process of a component of the control plane in a folder."""
    arguments = command_lines(folder).items()
    (pid,) = (pid for pid, (program, *_) in arguments if Path(program).name == name)
    return pid


def test_plane_prints_its_environment_restarts_what_ended_and_leaves_nothing(
    plane: ControlPlane,
) -> None:
    """`plane` has its programs built; this one is another."""
    page = ROOT / "docs" / "how-to" / "run-a-local-control-plane.md"
    assert "python -m pipeline.local.control_plane" in page.read_text()
    with program() as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        match = re.fullmatch(r'export KUBECONFIG=(\S+) PATH="(\S+):\$PATH"\n', line)
        assert match, line
        config, folders = Path(match[1]), [Path(folder) for folder in match[2].split(":")]
        assert (folders[1] / "helm").exists()
        messages = iter(process.stderr.readline, "")
        assert any("the control plane is ready" in message for message in messages)

        def namespaces() -> str:
            return subprocess.run(
                [folders[0] / "kubectl", "get", "namespaces", "-o", "name"],
                env={"KUBECONFIG": str(config), "HOME": str(config.parent)},
                stdout=subprocess.PIPE, text=True, check=False, timeout=60,
            ).stdout  # fmt: skip

        assert "namespace/default" in namespaces()
        for name in ("etcd", "kube-apiserver"):
            os.kill(pid_of(name, config.parent), signal.SIGKILL)
            log = config.parent / f"{name}.log"
            assert f"{name} ended, restarting it; log: {log}\n" in messages
        assert eventually(lambda: "namespace/default" in namespaces(), 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not config.parent.exists()
    assert plane.kubectl("get", "namespaces")


def test_plane_ends_with_an_error_if_a_component_cannot_be_restarted(plane: ControlPlane) -> None:
    """`plane` has its programs built; this one is another."""
    with program() as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().partition("KUBECONFIG=")[2].split()[0]).parent
        pid = pid_of("kwok", folder)
        guard = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
        os.kill(int(guard), signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
    assert "a component cannot be restarted, ending the others ..." in errors
    assert "\nerror: the guard of the local kwok" in errors
    assert "Traceback" not in errors
    assert eventually(lambda: not folder.exists() and not command_lines(folder))
    assert plane.kubectl("get", "namespaces")
