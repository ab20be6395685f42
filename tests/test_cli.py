"""The command: help, flags made from settings, errors as two lines, exit codes."""

import builtins
import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from pipeline.cli.main import COMMANDS, cli
from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.errors import BrokerUnavailableError, NotReadyError, SpringtideError
from pipeline.local.running_brokers import RunningBroker, make_state_dir, state_file
from pipeline.settings import Settings

Body = Callable[[Settings], None]


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `springtide top ...` with a body of the test's own."""

    def run(*arguments: str, body: Body, env: dict[str, str] | None = None) -> Result:
        @click.command()
        @settings_options(*KAFKA_CLIENT, "exporter.*", "worker.supervise")
        def command(settings: Settings) -> None:
            body(settings)

        module = ModuleType("pipeline.cli.top")
        module.command = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "pipeline.cli.top", module)
        return CliRunner().invoke(cli, list(arguments), env=env)

    return run


def test_help_names_every_command_without_loading_one() -> None:
    before = set(sys.modules)
    shown = CliRunner().invoke(cli, ["--help"])
    assert shown.exit_code == 0
    assert [name for name in COMMANDS if f"\n  {name} " not in shown.output] == []
    loaded = {name for name in set(sys.modules) - before if name.startswith("pipeline.cli.")}
    assert loaded == set()


def leaves(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """Every command that does something, by its whole name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from leaves(found, *path, name)
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", [*leaves(cli)], ids=" ".join)
def test_help_of_every_command_lists_its_exit_codes(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*path, "--help"])
    assert (shown.exit_code, "\nExit codes:\n  0  " in shown.output) == (0, True), shown.output


@pytest.mark.parametrize("path", [*leaves(cli)], ids=" ".join)
def test_results_are_formatted_by_the_option_output_alone(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*path, "--help"]).output
    assert re.search(r"--(json|csv|yaml|markdown)\b", shown) is None
    for first in re.findall(r"--output (\S+)", shown):
        assert first.startswith("[table|json|wide"), first


def test_help_of_groups_does_not_cut_sentences() -> None:
    for group in {path[:-1] for path in leaves(cli)}:
        shown = CliRunner().invoke(cli, [*group, "--help"])
        assert "...\n" not in shown.output.partition("\nCommands:\n")[2]


def test_version_option_prints_the_version() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output.startswith("springtide 0.")


def test_flags_become_settings(probe: Callable[..., Result]) -> None:
    seen: list[Settings] = []
    result = probe(
        "top", "--window-seconds", "60", "--bootstrap-servers", "a:1,b:2", "--no-supervise",
        "--metrics-port", "null",
        body=seen.append, env={"SPRINGTIDE_EXPORTER_WINDOW_SECONDS": "10"},
    )  # fmt: skip
    assert (result.exit_code, result.output) == (0, "")
    assert (seen[0].exporter.window_seconds, seen[0].kafka.bootstrap_servers) == (60, "a:1,b:2")
    assert (seen[0].worker.supervise, seen[0].exporter.metrics_port) == (False, None)


def test_global_options_work_before_and_after_the_command(
    probe: Callable[..., Result], tmp_path: Path
) -> None:
    one, two = tmp_path / "1.yaml", tmp_path / "2.yaml"
    one.write_text("exporter: {window_seconds: 10}")
    two.write_text("exporter: {window_seconds: 20}")
    seen: list[Settings] = []
    environment = {"SPRINGTIDE_CONFIG": str(one)}
    probe("top", body=seen.append, env=environment)
    probe("--config", str(two), "--log-level", "error", "top", body=seen.append, env=environment)
    probe("--config", str(one), "top", "--config", str(two), "--log-level", "debug",
          body=seen.append)  # fmt: skip
    assert [s.exporter.window_seconds for s in seen] == [10, 20, 20]
    assert [s.log.level for s in seen] == ["info", "error", "debug"]


def test_invalid_settings_are_two_lines_and_exit_code_2(probe: Callable[..., Result]) -> None:
    result = probe("top", "--window-seconds", "7", body=lambda _: None)
    assert (result.exit_code, result.stdout) == (2, "")
    what, how = result.stderr.splitlines()
    assert re.match(r"error: exporter\.window_seconds: .* is not allowed", what)
    assert how.startswith("  fix: ")


def failing(error: BaseException) -> Body:
    def body(_: Settings) -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpringtideError("broken", hint="mend it"), 1),
        (NotReadyError("no data yet"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_have_their_exit_codes(
    probe: Callable[..., Result], error: BaseException, code: int
) -> None:
    result = probe("top", body=failing(error))
    assert (result.exit_code, "Traceback" in result.stderr) == (code, False)


def test_debug_prints_the_traceback(probe: Callable[..., Result]) -> None:
    for arguments in (("--debug", "top"), ("top", "--debug")):
        result = probe(*arguments, body=failing(SpringtideError("broken")))
        assert "Traceback" in result.stderr
        assert result.stderr.endswith("error: broken\n")


def test_unexpected_error_is_raised(probe: Callable[..., Result]) -> None:
    result = probe("top", body=failing(ZeroDivisionError()))
    assert isinstance(result.exception, ZeroDivisionError)


def test_usage_errors_exit_with_2() -> None:
    assert CliRunner().invoke(cli, ["frobnicate"]).exit_code == 2
    assert CliRunner().invoke(cli, ["doctor", "--no-such-flag"]).exit_code == 2


def test_missing_extra_is_an_error_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_faust(name: str, *rest: Any, **more: Any) -> ModuleType:
        if name == "pipeline.cli.worker":
            raise ModuleNotFoundError("No module named 'faust'", name="faust")
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "pipeline.cli.worker", raising=False)
    monkeypatch.setattr("importlib.import_module", without_faust)
    result = CliRunner().invoke(cli, ["worker"])
    assert (result.exit_code, "'faust'" in result.stderr) == (2, True)
    assert "pip install '.[pipeline]'" in result.stderr


def test_colliding_flags_are_refused_at_import() -> None:
    with pytest.raises(ValueError, match="--metrics-host would be both"):
        settings_options("exporter.*", "worker.*")
    with pytest.raises(ValueError, match="no setting"):
        settings_options("exporter.windows")


def test_password_has_no_flag(probe: Callable[..., Result]) -> None:
    assert "password" not in probe("top", "--help", body=lambda _: None).output
    with pytest.raises(ValueError, match="no setting"):
        settings_options("kafka.sasl_password")


def test_doctor_reports_an_unavailable_broker() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--bootstrap-servers", "127.0.0.1:1", "-o", "json"])
    assert result.exit_code == 1
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    statuses = [checks[name]["status"] for name in ("kafka", "topics", "python")]
    assert statuses == ["fail", "unknown", "ok"]
    assert "springtide kafka start" in checks["kafka"]["todo"]
    assert checks["cgroups"]["status"] in {"ok", "warn"}


def test_doctor_prints_a_table() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--bootstrap-servers", "127.0.0.1:1"])
    for words in (r"fail .*kafka", r"ok .*python", ".*->"):
        assert re.search(f"^{words}", result.stdout, re.MULTILINE), result.stdout


def test_doctor_counts_the_pods_that_the_exporter_finds(tmp_path: Path) -> None:
    for controller in ("cpu", "cpuacct", "memory"):
        (tmp_path / controller / "kubelet/kubepods/burstable/podabc").mkdir(parents=True)

    def found(*flags: str) -> dict[str, str]:
        given = ["--bootstrap-servers", "127.0.0.1:1", "--cgroup-root", str(tmp_path), *flags]
        result = CliRunner().invoke(cli, ["doctor", "-o", "json", *given])
        (check,) = [c for c in json.loads(result.stdout)["checks"] if c["name"] == "pods"]
        return dict(check)

    pods = found("--cgroup-parent", "/kubelet")
    assert (pods["status"], pods["found"]) == ("ok", "1 found, cgroup driver cgroupfs")
    for flags in ((), ("--cgroup-parent", "kubelet", "--cgroup-driver", "systemd")):
        none = found(*flags)
        assert (none["status"], "exporter.cgroup_parent" in none["todo"]) == ("warn", True)
        assert str(tmp_path / "cpuacct") in none["found"]


def test_doctor_names_roots_without_cgroups(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli,
        ["doctor", "-o", "json", "--bootstrap-servers", "127.0.0.1:1",
         "--cgroup-root", str(tmp_path), "--proc-root", str(tmp_path)],
    )  # fmt: skip
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert {checks[name]["status"] for name in ("cgroups", "pods", "proc")} == {"fail"}
    assert str(tmp_path) in checks["proc"]["found"]


def test_threads_share_one_heap() -> None:
    """Those that a library starts when it is imported, too."""
    program = """
        import ctypes, threading
        from pipeline.cli.malloc import return_freed_memory

        return_freed_memory()
        import pyarrow

        held = []
        for _ in range(4):
            thread = threading.Thread(target=lambda: held.append([bytes(2000) for _ in range(999)]))
            thread.start()
            thread.join()
        libc = ctypes.CDLL(None)
        libc.fdopen.restype = ctypes.c_void_p
        out = ctypes.c_void_p(libc.fdopen(1, b"w"))
        libc.malloc_info(0, out)
        libc.fflush(out)
    """

    def heaps(**chosen: str) -> int:
        return _printed(program, **chosen).count("<heap nr=")

    assert heaps() == 1
    assert heaps(MALLOC_ARENA_MAX="3") > 1, "the operator's choice goes before ours"
    assert heaps(GLIBC_TUNABLES="glibc.malloc.arena_max=3") > 1


_FREED_BLOCKS = """
    import ctypes
    from pipeline.cli.malloc import keep_freed_memory, return_freed_memory

    return_freed_memory()
    {more}
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    libc.free(libc.malloc(8 << 20))

    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )]

    libc.mallinfo2.restype = Info
    before = libc.mallinfo2()
    libc.malloc(4 << 20)
    after = libc.mallinfo2()
    print(after.hblks - before.hblks, after.arena - before.arena)
"""


def test_large_blocks_return_to_the_system() -> None:
    """By default glibc takes a block from the heap once one of its size was freed."""
    program = _FREED_BLOCKS.format(more="")
    assert _printed(program) == "1 0\n", "outside of the heap"
    own = _printed(program, MALLOC_MMAP_THRESHOLD_="16777216")
    assert own.startswith("0 "), "the operator's choice"


def test_commands_that_compute_and_end_use_freed_memory_again() -> None:
    program = _FREED_BLOCKS.format(more="keep_freed_memory()")
    assert _printed(program) == "0 0\n", "in the heap, which does not grow"
    own = _printed(program, MALLOC_TRIM_THRESHOLD_="4096")
    assert own != "0 0\n", "the operator's choice"


def _printed(program: str, **environ: str) -> str:
    """What a program prints without the machine's settings of malloc."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=plain | environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return run.stdout


def test_full_disk_is_an_error_of_two_lines() -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "pipeline.cli.main", "policy", "--help"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr == (
        "error: cannot write: No space left on device\n  fix: free space, or write elsewhere\n"
    )


def test_errors_cannot_move_the_cursor(probe: Callable[..., Result]) -> None:
    def fail(_: Settings) -> None:
        raise SpringtideError("a log ends:\n\tnode \x1b[2Jn", hint="rename \r\x07")

    assert probe("top", body=fail).stderr == (
        "error: a log ends:\n        node \\x1b[2Jn\n  fix: rename \\r\\x07\n"
    )


@pytest.mark.parametrize("closed", ["0<&-", "2>&-"])
def test_closed_standard_input_and_error_are_no_failure(closed: str) -> None:
    ended = run_in_bash(f"scheduler config {closed}")
    assert (ended.returncode, "KubeSchedulerConfiguration" in ended.stdout) == (0, True)


@pytest.mark.parametrize("arguments", ["scheduler config", "kafka status -o json", "--help"])
def test_a_command_that_cannot_print_fails(arguments: str) -> None:
    ended = run_in_bash(f"{arguments} 1>&-")
    assert (ended.returncode, ended.stderr.splitlines()) == (
        1,
        ["error: cannot write to standard output: Bad file descriptor",
         "  fix: it is closed: redirect it to a file or /dev/null"],
    )  # fmt: skip
    assert run_in_bash(f"{arguments} 0<&- 1>&- 2>&-").returncode == 1


def run_in_bash(arguments: str) -> subprocess.CompletedProcess[str]:
    command = shlex.join([sys.executable, "-m", "pipeline.cli.main"])
    return subprocess.run(
        ["bash", "-c", f"exec {command} {arguments}"], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def test_interrupt_during_import_prints_no_traceback() -> None:
    source = """
import sys
class Interrupting:
    def find_spec(self, name, *rest):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from pipeline.cli.entry import main
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")


def run_command(*arguments: str | bytes, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli.main", *arguments], env=os.environ | environment,
        capture_output=True, text=True, errors="replace", timeout=60,
    )  # fmt: skip


def test_a_refusal_of_the_system_is_an_error_of_two_lines(probe: Callable[..., Result]) -> None:
    def fail(_: Settings) -> None:
        raise PermissionError(13, "Permission denied", "/root/out.json")

    result = probe("top", body=fail)
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        1, "error: the system refuses access /root/out.json: Permission denied"
    )  # fmt: skip
    assert "Traceback" in probe("--debug", "top", body=fail).stderr


def test_an_argument_that_is_not_utf8_is_a_usage_error() -> None:
    ended = run_command("why-not", b"n\xff", b"p")
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (
        2, "error: the argument n\\udcff is not UTF-8"
    )  # fmt: skip


def test_a_terminal_without_unicode_gets_escape_sequences(tmp_path: Path) -> None:
    ended = run_command("policy", "/ü→", PYTHONIOENCODING="latin-1")
    assert (ended.returncode, "/\ufffd\\u2192" in ended.stderr) == (2, True)
    # Python itself escapes on standard error only.
    file = tmp_path / "ü→.yaml"
    file.write_text(CliRunner().invoke(cli, ["scheduler", "config"]).stdout)
    ended = run_command("scheduler", "check", str(file), PYTHONIOENCODING="latin-1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "/\ufffd\\u2192.yaml: no problems" in ended.stdout


def test_help_of_the_control_plane_starts_none() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pipeline.local.control_plane", "--help"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Run a control plane until Ctrl-C" in ended.stdout


@pytest.mark.parametrize(("port", "ca_file"), [(19092, None), (19092, "ca.pem"), (9092, None)])
def test_a_local_broker_on_another_port_is_suggested(
    probe: Callable[..., Result], tmp_path: Path, port: int, ca_file: str | None
) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    broker = RunningBroker(port, 1, 1, "id", "data", "log", "java", "2026-01-01T00:00:00Z", ca_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path))
        make_state_dir()
        announcement = state_file(port)
    announcement.write_bytes(msgspec.json.encode(broker))
    error = BrokerUnavailableError("reading: no broker answers at 127.0.0.1:9092")
    with announcement.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as the broker's guard, while the broker runs
        result = probe("top", body=failing(error), env=environment)
    suggested = "  fix: a local broker runs: add --bootstrap-servers 127.0.0.1:19092, or correct "
    assert (suggested in result.stderr) is (port == 19092 and ca_file is None), result.stderr
    again = probe("top", body=failing(error), env=environment)
    assert "springtide kafka start" in again.stderr  # without the lock, the broker has ended


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["tpo"], "top"), (["kafka", "strat"], "start"), (["topics", "aplly"], "apply"),
        (["model", "inspct"], "inspect"), (["scheduler", "confg"], "config"),
        (["alerts", "--wacth"], "--watch"),
    ],
)  # fmt: skip
def test_a_misspelt_command_or_option_has_a_suggestion(typed: list[str], meant: str) -> None:
    result = CliRunner().invoke(cli, typed)
    assert (result.exit_code, "Did you mean" in result.output) == (2, True), result.output
    assert meant in result.output.partition("Did you mean")[2]
    assert "Did you mean" not in CliRunner().invoke(cli, ["xyzzy"]).output
