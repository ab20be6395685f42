"""The summary of a run says how its processes died."""

import pytest

TESTS = {
    "test_fault": "import ctypes\ndef test_fault():\n    ctypes.string_at(0)\n",
    "test_kill": "import os, signal\ndef test_kill():\n    os.kill(os.getpid(), signal.SIGKILL)\n",
}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("test_fault", ["killed by signal 11", "in test_fault"]),
        ("test_kill", ["killed by signal 9"]),
    ],
)
def test_a_dead_process_is_in_the_summary(
    pytester: pytest.Pytester, name: str, said: list[str]
) -> None:
    pytester.makepyfile(**{name: TESTS[name]})
    options = ("-p", "tests.crashed_workers", "-n", "1", "--max-worker-restart", "0")
    run = pytester.runpytest_subprocess(*options)
    assert run.ret != 0
    summary = run.stdout.str().rpartition("a process of this run died")[2]
    assert all(text in summary for text in [*said, "MemAvailable"]), run.stdout.str()
