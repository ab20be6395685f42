"""The control plane starts as docs/how-to/run-a-local-control-plane.md documents it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.local.process_guard import die_with_parent

# Its programs may have to be built.
pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]


def test_plane_prints_the_environment_and_leaves_nothing(plane: ControlPlane) -> None:
    """`plane` has its programs built; this one is another."""
    page = ROOT / "docs" / "how-to" / "run-a-local-control-plane.md"
    assert "python -m pipeline.local.control_plane" in page.read_text()
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'node-exporter'}"}
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline.local.control_plane"], env=os.environ | path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(r'export KUBECONFIG=(\S+) PATH="(\S+):\$PATH"\n', line)
        assert match, line
        config, folders = Path(match[1]), [Path(folder) for folder in match[2].split(":")]
        assert (folders[1] / "helm").exists()
        answer = subprocess.run(
            [folders[0] / "kubectl", "get", "namespaces", "-o", "name"],
            env={"KUBECONFIG": str(config), "HOME": str(config.parent)},
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert "namespace/default" in answer.stdout
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not config.parent.exists()
    assert plane.kubectl("get", "namespaces")
