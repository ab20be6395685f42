"""A fake node for features that this machine lacks: v2, kidled, counters that go backwards."""

from pathlib import Path

from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, pod_dir
from pipeline.settings import ExporterSettings

SECOND_NS = 1_000_000_000


class FakeNode:
    """/proc, /sys and a cgroup tree below a directory; files are written in place."""

    def __init__(self, folder: Path, version: int = 1) -> None:
        self.proc, self.sys, self.cgroups = folder / "proc", folder / "sys", folder / "cgroup"
        self.version = version
        for directory in (self.proc / "1/net", self.proc / "pressure", self.sys):
            directory.mkdir(parents=True)
        if version == 1:
            for controller in ("cpu", "cpuacct", "memory"):
                (self.cgroups / controller).mkdir(parents=True)
        else:
            self.cgroups.mkdir(parents=True)
            (self.cgroups / "cgroup.controllers").write_text("cpu memory\n")
        self.node(0)

    def settings(self, **overrides: object) -> ExporterSettings:
        return ExporterSettings(
            node_name="fake",
            cgroup_root=self.cgroups,
            proc_root=self.proc,
            sys_root=self.sys,
            window_seconds=10,
            **overrides,  # type: ignore[arg-type]
        )

    def node(self, busy_ticks: int, used_kib: int = 1000) -> None:
        (self.proc / "stat").write_text(f"cpu  {busy_ticks} 0 0 500 0 0 0 0 0 0\n")
        free, available = 9000 - used_kib, 10000 - used_kib
        (self.proc / "meminfo").write_text(
            f"MemTotal: 10000 kB\nMemFree: {free} kB\nMemAvailable: {available} kB\n"
        )

    def path(self, uid: str, kube_qos: KubeQOS = KubeQOS.BURSTABLE) -> str:
        return pod_dir(Driver.CGROUPFS, kube_qos, uid)

    def pod(
        self, uid: str, usage_ns: int, memory: int = 100, kube_qos: KubeQOS = KubeQOS.BURSTABLE
    ) -> None:
        self.cgroup(self.path(uid, kube_qos), usage_ns, memory)

    def cgroup(self, path: str, usage_ns: int, memory: int = 100) -> None:
        fields = f"inactive_anon 0\nactive_anon {memory}\nunevictable 0\n"
        fields += f"inactive_file {memory}\nactive_file 0\n"
        if self.version == 1:
            total = "".join(f"total_{line}\n" for line in fields.splitlines())
            self.file("cpuacct", path, "cpuacct.usage", f"{usage_ns}\n")
            self.file("cpu", path, "cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n")
            self.file("memory", path, "memory.stat", fields + total)
            self.file("memory", path, "memory.usage_in_bytes", f"{5 * memory}\n")
        else:
            self.file("", path, "cpu.stat", f"usage_usec {usage_ns // 1000}\n")
            self.file("", path, "memory.stat", fields)
            self.file("", path, "memory.current", f"{5 * memory}\n")

    def file(self, controller: str, path: str, name: str, text: str) -> None:
        directory = self.cgroups / controller / path
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
