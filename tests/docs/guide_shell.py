"""Run the commands of a guide in their order, as a reader types them."""

import re
import shlex
import subprocess
from pathlib import Path

from pipeline.local.build_programs import ensure_helm, ensure_programs
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KafkaSettings
from tests.deploy.helm import helm_environment
from tests.processes import ROOT, environment, springtide


def commands_of(guide: str, indent: int) -> list[str]:
    """The lines of a page of docs that are indented so far, outside of fenced blocks."""
    text = (ROOT / "docs" / guide).read_text()
    outside = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    return re.findall(rf"^ {{{indent}}}(\S.*)$", outside, re.M)


class Shell:
    """A shell in a folder of its own with the chart, in which `springtide`, `kubectl` and `helm`
    are the real ones."""

    def __init__(
        self, folder: Path, kafka: KafkaSettings, plane: ControlPlane | None = None
    ) -> None:
        self._folder = folder
        (folder / "deploy").symlink_to(ROOT / "deploy")
        programs = folder / "programs"
        programs.mkdir()
        command = shlex.join(springtide())
        (programs / "springtide").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / "springtide").chmod(0o755)
        paths = [programs]
        self._environment = environment()
        if plane is not None:
            paths += [ensure_helm().parent, ensure_programs()["kubectl"].parent]
            self._environment |= helm_environment(plane.kubeconfig())
        self._environment["PATH"] = ":".join([*map(str, paths), self._environment["PATH"]])
        self._environment |= {
            "PYTHONPATH": environment()["PYTHONPATH"],
            "SPRINGTIDE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "SPRINGTIDE_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
            "SPRINGTIDE_KAFKA_PARTITIONS": str(kafka.partitions),
        }

    def run(self, command: str) -> str:
        """The output of a command, which must succeed."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=self._folder, env=self._environment,
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout
