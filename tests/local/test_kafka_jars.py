"""The cache of jars: tiny files and a source in this process stand in for Kafka's 45 MB, except
where jgo itself is asked, over HTTP, against a repository on loopback."""

import functools
import hashlib
import http.server
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import LocalKafkaError
from pipeline.local import kafka_jars
from pipeline.local.kafka_jars import Jar, cache_dir, ensure_jars, is_cached, read_lock

BYTES = {f"org.example:part{n}:1.{n}": b"jar %d " % n * 100 for n in range(6)}


@pytest.fixture
def lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kafka_jars, "ATTEMPTS", 2)
    lines = [
        f"{hashlib.sha256(data).hexdigest()} {len(data)} {name}" for name, data in BYTES.items()
    ]
    path = tmp_path / "tiny.lock"
    path.write_text("# tiny\n\n" + "\n".join(lines) + "\n")
    return path


class FakeSource:
    """Hands out BYTES, or what `instead` says; remembers what it was asked for."""

    def __init__(self, instead: dict[str, bytes | Exception] | None = None) -> None:
        self.instead = instead or {}
        self.asked: list[str] = []

    def __call__(self, jar: Jar, place: Path) -> Path:
        self.asked.append(jar.coordinates)
        answer = self.instead.get(jar.coordinates, BYTES[jar.coordinates])
        if isinstance(answer, Exception):
            raise answer
        place.mkdir()
        (place / "some.jar").write_bytes(answer)
        return place / "some.jar"


def ignore(_: str) -> None:
    pass


def assert_complete(lock_file: Path) -> None:
    assert is_cached(lock_file)
    left = {path.name for path in cache_dir(lock_file).iterdir()}
    assert left == {jar.file_name for jar in read_lock(lock_file)} | {"lock"}


def test_the_real_list_pins_one_version_of_kafka_and_one_backend_of_its_log() -> None:
    pinned = {jar.coordinates for jar in read_lock()}
    server = f"org.apache.kafka:kafka-server:{kafka_jars.KAFKA_VERSION}"
    assert {*kafka_jars.ROOTS, server} <= pinned
    assert len(pinned) == 46
    parts = [name.split(":") for name in pinned]
    kafka = {version for group, _, version in parts if group == "org.apache.kafka"}
    assert kafka == {kafka_jars.KAFKA_VERSION}
    logs = {name for _, name, _ in parts if name.startswith(("slf4j-", "log4j-slf4j"))}
    assert logs == {"slf4j-api", "slf4j-simple"}


@pytest.mark.parametrize("value", [None, "", "relative/path", "/absolute"])
def test_the_cache_is_named_by_the_list_in_the_cache_directory_or_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    digest = hashlib.sha256(kafka_jars.LOCK_FILE.read_bytes()).hexdigest()
    folder = Path(value) if value == "/absolute" else tmp_path / ".cache"
    assert cache_dir() == folder / "springtide" / "kafka" / digest[:16]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("garbage", "line 2"),
        ("aa 12 org.example:part:1", "line 2"),
        (f"{'0' * 64} -3 org.example:part:1", "line 2"),
        (f"{'0' * 64} 12 org.example:part", "line 2"),
        (f"{'0' * 64} 12 org.example:../../part:1", "line 2"),
        (f"{'0' * 64} 12 org.example:part:1 more", "line 2"),
        (f"{'0' * 64} 1 org.a:part:1\n{'1' * 64} 1 org.b:part:1", "the same name"),
    ],
)
def test_damaged_list_is_refused(tmp_path: Path, lines: str, says: str) -> None:
    damaged = tmp_path / "damaged.lock"
    damaged.write_text(f"# list\n{lines}\n")
    with pytest.raises(LocalKafkaError, match=says):
        read_lock(damaged)


def test_each_jar_is_downloaded_once(lock_file: Path) -> None:
    progress: list[str] = []
    source = FakeSource()
    assert not is_cached(lock_file)
    paths = ensure_jars(lock_file, fetch=source, report=progress.append)
    assert [path.read_bytes() for path in paths] == list(BYTES.values())
    assert sorted(source.asked) == sorted(BYTES)
    assert progress[0].startswith("downloading 6 jars (0 MB) of Apache Kafka")
    assert ensure_jars(lock_file, fetch=source, report=ignore) == paths
    assert len(source.asked) == len(BYTES)
    assert_complete(lock_file)


WHOLE = BYTES["org.example:part2:1.2"]


@pytest.mark.parametrize(
    "damaged",
    [b"X" + WHOLE[1:], WHOLE[:-1], None, b""],
    ids=["flip", "truncate", "remove", "empty"],
)
def test_only_a_damaged_jar_is_downloaded_again(lock_file: Path, damaged: bytes | None) -> None:
    victim = ensure_jars(lock_file, fetch=FakeSource(), report=ignore)[2]
    victim.unlink()
    if damaged is not None:
        victim.write_bytes(damaged)
    assert not is_cached(lock_file)
    source = FakeSource()
    ensure_jars(lock_file, fetch=source, report=ignore)
    assert source.asked == ["org.example:part2:1.2"]
    assert victim.read_bytes() == WHOLE


def test_jar_with_another_checksum_is_never_used(lock_file: Path) -> None:
    source = FakeSource({"org.example:part3:1.3": b"evil"})
    with pytest.raises(LocalKafkaError, match=r"part3:1\.3 is not the tested jar"):
        ensure_jars(lock_file, fetch=source, report=ignore)
    assert source.asked.count("org.example:part3:1.3") == 2
    assert not (cache_dir(lock_file) / "part3-1.3.jar").exists()
    assert not list(cache_dir(lock_file).glob("fetching-*"))


def test_failed_download_is_repeated(lock_file: Path) -> None:
    source = FakeSource({"org.example:part1:1.1": ConnectionError("reset")})

    def better_the_second_time(jar: Jar, place: Path) -> Path:
        try:
            return source(jar, place)
        finally:
            source.instead.pop(jar.coordinates, None)

    ensure_jars(lock_file, fetch=better_the_second_time, report=ignore)
    assert source.asked.count("org.example:part1:1.1") == 2


def test_unreachable_repository_is_an_error_with_a_fix(lock_file: Path) -> None:
    unreachable: dict[str, bytes | Exception] = {
        name: ConnectionError("no route to host") for name in BYTES
    }
    with pytest.raises(LocalKafkaError, match="no route to host") as caught:
        ensure_jars(lock_file, fetch=FakeSource(unreachable), report=ignore)
    assert str(cache_dir(lock_file)) in str(caught.value)
    assert "--bootstrap-servers" in str(caught.value)


def test_untrusted_proxy_certificate_is_an_error_with_a_fix(lock_file: Path) -> None:
    refused = OSError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate in chain")
    with pytest.raises(LocalKafkaError, match="REQUESTS_CA_BUNDLE"):
        ensure_jars(lock_file, fetch=FakeSource({"org.example:part0:1.0": refused}), report=ignore)


def test_jars_downloaded_before_a_failure_are_kept(lock_file: Path) -> None:
    last = list(BYTES)[-1]
    with pytest.raises(LocalKafkaError, match="cut"):
        ensure_jars(lock_file, fetch=FakeSource({last: OSError("cut")}), report=ignore)
    source = FakeSource()
    ensure_jars(lock_file, fetch=source, report=ignore)
    assert last in source.asked
    assert len(source.asked) < len(BYTES)
    assert_complete(lock_file)


def test_unwritable_jar_cache_is_an_error(lock_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(lock_file))
    with pytest.raises(LocalKafkaError, match="cannot write Kafka's jars") as caught:
        ensure_jars(lock_file, fetch=FakeSource(), report=ignore)
    assert "XDG_CACHE_HOME" in str(caught.value)


def half_then_hang(started: Path, jar: Jar, place: Path) -> Path:
    if jar.coordinates == "org.example:part4:1.4":
        place.mkdir()
        (place / "some.jar").write_bytes(BYTES[jar.coordinates][:50])
        started.touch()
        time.sleep(60)
    return FakeSource()(jar, place)


def test_killed_download_leaves_no_partial_jar(lock_file: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    child = multiprocessing.get_context("fork").Process(
        target=ensure_jars,
        args=(lock_file,),
        kwargs={"fetch": functools.partial(half_then_hang, started), "report": ignore},
    )
    child.start()
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert list(cache_dir(lock_file).glob("fetching-*"))
    assert not is_cached(lock_file)
    for jar in read_lock(lock_file):
        path = cache_dir(lock_file) / jar.file_name
        assert not path.exists() or path.read_bytes() == BYTES[jar.coordinates]
    ensure_jars(lock_file, fetch=FakeSource(), report=ignore)
    assert_complete(lock_file)


def note_and_fetch(notes: Path, jar: Jar, place: Path) -> Path:
    with notes.open("a") as file:
        file.write(jar.coordinates + "\n")
    time.sleep(0.02)
    return FakeSource()(jar, place)


def test_concurrent_processes_download_once(lock_file: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(
            target=ensure_jars,
            args=(lock_file,),
            kwargs={"fetch": functools.partial(note_and_fetch, notes), "report": ignore},
        )
        for _ in range(4)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0] * 4
    assert sorted(notes.read_text().split()) == sorted(BYTES)
    assert_complete(lock_file)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An HTTP repository on loopback that jgo uses in place of the public one."""
    root = tmp_path / "repository"
    for coordinates, data in BYTES.items():
        group, artifact, version = coordinates.split(":")
        folder = root.joinpath(*group.split("."), artifact, version)
        folder.mkdir(parents=True)
        (folder / f"{artifact}-{version}.jar").write_bytes(data)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(root))
    )
    settings = tmp_path / "jgo.conf"
    settings.write_text(f"[repositories]\ncentral = http://127.0.0.1:{server.server_port}\n")
    monkeypatch.setenv("JGO_CONFIG_FILE", str(settings))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield root
    server.shutdown()
    server.server_close()


def test_jgo_downloads_exactly_the_listed_jars(lock_file: Path, repository: Path) -> None:
    paths = ensure_jars(lock_file, report=ignore)
    assert [path.read_bytes() for path in paths] == list(BYTES.values())
    assert_complete(lock_file)


def test_jgo_reports_a_missing_jar(lock_file: Path, repository: Path) -> None:
    next(repository.rglob("part5-1.5.jar")).unlink()
    with pytest.raises(LocalKafkaError, match=r"org\.example:part5:1\.5"):
        ensure_jars(lock_file, report=ignore)


def test_jgo_reports_a_missing_network(
    lock_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "jgo.conf"
    settings.write_text("[repositories]\ncentral = http://127.0.0.1:9/nobody\n")
    monkeypatch.setenv("JGO_CONFIG_FILE", str(settings))
    with pytest.raises(LocalKafkaError, match="cannot download org"):
        ensure_jars(lock_file, report=ignore)
