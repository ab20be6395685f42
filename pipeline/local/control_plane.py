"""A Kubernetes control plane on this machine: etcd, API server, controllers, scheduler, and KWOK.

The components listen on loopback, with TLS and RBAC. KWOK simulates the kubelets as configured in
`deploy/controlplane/stages.yaml`. A guard per component (`process_guard`) stops it when this
process ends. `python -m pipeline.local.control_plane` runs one until Ctrl-C, and restarts
components that end.

    with local_control_plane() as plane:
        plane.kubectl("get", "nodes")
        plane.kubeconfig("system:serviceaccount:default:default", ["system:serviceaccounts"])
"""

import argparse
import json
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pipeline.clock import SystemClock
from pipeline.errors import ControlPlaneError
from pipeline.local import process_guard
from pipeline.local.build_programs import PROGRAMS, SOURCES, ensure_helm, ensure_programs
from pipeline.local.guarded_process import GuardedProcess
from pipeline.local.pki import Authority, Pair, key_pair
from pipeline.local.port_probe import HOST, PORT_TAKEN_IN_LOG, free_port

ADMIN: Final = "springtide-admin"

_ATTEMPTS: Final = 5
_TAIL_LINES: Final = 15
_REQUEST_SECONDS: Final = 5.0
_LEASE_SECONDS: Final = 40
_POLL_SECONDS: Final = 0.05
_RESTART_SECONDS: Final = 3.0
_AUDIT_FILES: Final = 5
_AUDIT_FILE_MB: Final = 100


class Component:
    """A component of the control plane: a process which can be killed and restarted."""

    def __init__(self, name: str, folder: Path, remove: Path | None = None) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.argv: list[str] = []
        self._folder = folder
        self._child = GuardedProcess(self.log, remove, name, ControlPlaneError)

    def start(self) -> None:
        """Start it if it is not running."""
        if not self._child.is_running():
            self._child.start(self.argv, cwd=self._folder)

    def kill(self) -> None:
        """Send SIGKILL, to simulate a crash."""
        if self._child.is_running():
            self._child.signal(signal.SIGKILL, process_guard.GRACE_SECONDS)

    def close(self) -> None:
        """Stop it and its guard."""
        self._child.close()

    @property
    def is_running(self) -> bool:
        return self._child.is_running()

    def error(self, problem: str) -> ControlPlaneError:
        """Return an error with the end of the log."""
        tail = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        lines = [f"{self.name} {problem}; its log ends:", *(f"  {line}" for line in tail)]
        return ControlPlaneError("\n".join(lines))


class ControlPlane:
    """A control plane with its data in a temporary directory.

    `scheduler` is a KubeSchedulerConfiguration without clientConnection and leaderElection.
    `audit_policy` is the Policy by which the API server writes `audit_log`; without it, it writes
    none. `api_flags` are additional flags of the API server.
    """

    def __init__(
        self, *, scheduler: dict[str, Any] | None = None,
        audit_policy: dict[str, Any] | None = None, api_flags: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._scheduler = scheduler or {}
        self._audit_policy = audit_policy
        self._api_flags = list(api_flags)
        self._programs = ensure_programs()
        self.folder = Path(tempfile.mkdtemp(prefix="springtide-plane-"))
        self._authority = Authority(self.folder, SystemClock())
        self._users: dict[tuple[str, tuple[str, ...]], Pair] = {}
        self._port = 0
        # etcd is stopped last, and its guard removes the directory.
        self.components = {
            name: Component(name, self.folder, self.folder if name == "etcd" else None)
            for name in PROGRAMS
            if name != "kubectl"
        }

    @property
    def server(self) -> str:
        return f"https://{HOST}:{self._port}"

    @property
    def certificate_authority(self) -> Path:
        return self._authority.certificate

    @property
    def audit_log(self) -> list[Path]:
        """The files of the audit log, the oldest first."""
        rotated = sorted(self.folder.glob("audit-*.log"))
        return [*rotated, *self.folder.glob("audit.log")]

    @property
    def api(self) -> Component:
        return self.components["kube-apiserver"]

    def start(self, timeout_seconds: float = 180.0) -> None:
        """Start all components; return when the API server is ready and the controllers work.
        Raises `ControlPlaneError` with the end of a log if one ends or is not ready in time."""
        deadline = time.monotonic() + timeout_seconds
        for attempt in range(1, _ATTEMPTS + 1):
            self._prepare()
            try:
                for name in ("etcd", "kube-apiserver"):
                    self.components[name].start()
                self.wait_ready(deadline)
                break
            except ControlPlaneError as error:
                if attempt == _ATTEMPTS or not PORT_TAKEN_IN_LOG.search(error.message):
                    raise
                for name in ("kube-apiserver", "etcd"):
                    self.components[name].kill()
        for name in ("kube-controller-manager", "kube-scheduler", "kwok"):
            self.components[name].start()
        # Pods are admitted only with this service account.
        self._wait_for("/api/v1/namespaces/default/serviceaccounts/default", deadline)

    def wait_ready(self, deadline: float) -> None:
        """Return when the API server answers. Raises as `start` does."""
        self._wait_for("/readyz", deadline)

    def restart_ended(self) -> list[Component]:
        """Restart the components that have ended, and return them. The data of etcd is kept. Raises
        `ControlPlaneError` for one whose guard has ended, too."""
        ended = [component for component in self.components.values() if not component.is_running]
        for component in ended:
            component.start()
        return ended

    def close(self) -> None:
        """Stop all components and remove the directory. May be called twice."""
        # An API server without etcd needs a minute to end, and holds its port meanwhile.
        for name in reversed(self.components):
            self.components[name].close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kubeconfig(
        self, user: str = ADMIN, groups: Sequence[str] = (), *, server: str | None = None
    ) -> Path:
        """Write a kubeconfig for `user` in `groups`, and return its path.

        RBAC applies to all users except the administrator. `server` replaces the address, for
        example by that of a proxy.
        """
        if user == ADMIN:
            groups = ["system:masters"]
        identity = user, tuple(groups)
        if identity not in self._users:
            self._users[identity] = self._authority.client(user, groups)
        pair, cluster = self._users[identity], {"server": server or self.server}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "local",
                    "cluster": {
                        **cluster,
                        "certificate-authority": str(self.certificate_authority),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate": str(pair.public),
                        "client-key": str(pair.private),
                    },
                }
            ],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
            "current-context": "local",
        }
        suffix = "" if server is None else f"-by-{server.rpartition(':')[2]}"
        path = self.folder / f"{pair.public.stem}{suffix}.kubeconfig"
        # Atomically, because a client may be reading it, and another thread writing it.
        with tempfile.NamedTemporaryFile(
            "w", dir=self.folder, suffix=".part", delete=False
        ) as temporary:
            temporary.write(json.dumps(document))
        return Path(temporary.name).replace(path)

    def kubectl(self, *arguments: str, stdin: str | None = None, user: Path | None = None) -> str:
        """Run kubectl as the user of this kubeconfig, with `stdin` as standard input.

        Returns its output. Raises `ControlPlaneError` with its error output if it fails.
        """
        argv = [str(self._programs["kubectl"]), f"--kubeconfig={user or self.kubeconfig()}"]
        # Otherwise it caches discovery in the user's home.
        argv += [f"--cache-dir={self.folder / 'kubectl'}"]
        completed = subprocess.run(
            [*argv, *arguments], input=stdin, capture_output=True, text=True, cwd=self.folder,
            check=False,
        )  # fmt: skip
        if completed.returncode != 0:
            raise ControlPlaneError(f"kubectl {' '.join(arguments)}: {completed.stderr.strip()}")
        return completed.stdout

    def _prepare(self) -> None:
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)
        client, peer, self._port = (free_port() for _ in range(3))
        for name, flags in self._flags(f"http://{HOST}:{client}", f"http://{HOST}:{peer}").items():
            self.components[name].argv = [str(self._programs[name]), *flags]

    def _flags(self, etcd: str, etcd_peer: str) -> dict[str, list[str]]:
        tls = self._authority.server("kube-apiserver", [HOST, "10.0.0.1"], ["localhost"])
        accounts = key_pair(self.folder, "service-accounts")
        return {
            "etcd": [
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls={etcd_peer}",
                f"--initial-advertise-peer-urls={etcd_peer}",
                f"--initial-cluster=default={etcd_peer}",
                # The data need not survive a crash of the machine.
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
            "kube-apiserver": [
                f"--etcd-servers={etcd}",
                f"--bind-address={HOST}",
                f"--secure-port={self._port}",
                f"--advertise-address={HOST}",
                "--endpoint-reconciler-type=none",
                f"--cert-dir={self.folder}",
                f"--tls-cert-file={tls.public}",
                f"--tls-private-key-file={tls.private}",
                f"--client-ca-file={self.certificate_authority}",
                "--authorization-mode=RBAC",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={accounts.public}",
                f"--service-account-signing-key-file={accounts.private}",
                "--service-cluster-ip-range=10.0.0.0/24",
                *self._audit_flags(),
                *self._api_flags,
            ],
            "kube-controller-manager": [
                f"--kubeconfig={self.kubeconfig('system:kube-controller-manager')}",
                f"--service-account-private-key-file={accounts.private}",
                f"--root-ca-file={self.certificate_authority}",
                "--use-service-account-credentials",
                "--leader-elect=false",
                "--secure-port=0",
            ],
            "kube-scheduler": [f"--config={self._scheduler_file()}", "--secure-port=0"],
            "kwok": [
                f"--kubeconfig={self.kubeconfig()}",
                f"--config={SOURCES / 'stages.yaml'}",
                "--manage-all-nodes=true",
                f"--node-lease-duration-seconds={_LEASE_SECONDS}",
            ],
        }

    def _audit_flags(self) -> list[str]:
        if self._audit_policy is None:
            return []
        path = self.folder / "audit-policy.yaml"
        path.write_text(json.dumps(self._audit_policy))
        return [
            f"--audit-policy-file={path}",
            f"--audit-log-path={self.folder / 'audit.log'}",
            f"--audit-log-maxsize={_AUDIT_FILE_MB}",
            f"--audit-log-maxbackup={_AUDIT_FILES}",
        ]

    def _scheduler_file(self) -> Path:
        path = self.folder / "scheduler.yaml"
        connection = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.kubeconfig("system:kube-scheduler"))},
        }
        path.write_text(json.dumps({**self._scheduler, **connection}))
        return path

    def _wait_for(self, path: str, deadline: float) -> None:
        """Return when the API server answers GET `path` with 200."""
        while not self._answers(path):
            for component in (self.components["etcd"], self.api):
                if not component.is_running:
                    raise component.error("ended")
            if time.monotonic() > deadline:
                raise self.api.error(f"did not answer {path} with 200 in time")
            time.sleep(_POLL_SECONDS)

    def _answers(self, path: str) -> bool:
        admin = self._users[ADMIN, ("system:masters",)]
        context = ssl.create_default_context(cafile=str(self.certificate_authority))
        context.load_cert_chain(admin.public, admin.private)
        try:
            with urllib.request.urlopen(
                f"{self.server}{path}", timeout=_REQUEST_SECONDS, context=context
            ) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False


@contextmanager
def local_control_plane(**options: Any) -> Iterator[ControlPlane]:
    """Start a control plane, and close it at the end of the `with` block."""
    plane = ControlPlane(**options)
    try:
        plane.start()
        yield plane
    finally:
        plane.close()


def main() -> None:
    """Run a control plane until Ctrl-C or SIGTERM; print a line that sets KUBECONFIG and PATH.

    Components that end are restarted, and keep their data.
    """
    argparse.ArgumentParser(
        prog="python -m pipeline.local.control_plane", description=main.__doc__
    ).parse_args()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        _run_until(ended)
    except ControlPlaneError as error:
        sys.exit(f"error: {error}")


def _run_until(ended: threading.Event) -> None:
    folders = f"{ensure_programs()['kubectl'].parent}:{ensure_helm().parent}"
    with local_control_plane() as plane:
        sys.stdout.write(f'export KUBECONFIG={plane.kubeconfig()} PATH="{folders}:$PATH"\n')
        sys.stdout.flush()
        sys.stderr.write(
            "the control plane is ready: paste this line into another shell; Ctrl-C ends it\n"
        )
        while not ended.wait(_RESTART_SECONDS):
            try:
                restarted = plane.restart_ended()
            except ControlPlaneError:
                sys.stderr.write("a component cannot be restarted, ending the others ...\n")
                raise
            for component in restarted:
                sys.stderr.write(f"{component.name} ended, restarting it; log: {component.log}\n")


if __name__ == "__main__":
    main()
