"""The broker's jars: pinned by coordinates and SHA-256, fetched once, checked at every use.

`kafka-jars.lock` is the one list. The jars lie in a folder of the user's cache that is named by
that list's hash, so another list is another folder. A jar gets there by a rename, after its
checksum was found right; so a download that is cut short leaves nothing that could be mistaken for
a jar, and the next one goes on where it ended. Two processes at a time take turns by a file lock.

What is fetched is exactly what is listed: nothing is resolved, so what others publish tomorrow
cannot change the set. `python -m pipeline.local.kafka_jars` resolves anew and prints the list for a
newer Kafka.
"""

import hashlib
import logging
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.errors import JarChecksumError, JarFetchError, LocalKafkaError, MissingExtraError
from pipeline.local.cache_folders import Say, cache_root, in_turn, on_stderr

if TYPE_CHECKING:
    from jgo.maven import MavenContext

KAFKA_VERSION: Final = "4.3.1"
ROOTS: Final = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
LOCK_FILE: Final = Path(__file__).with_name("kafka-jars.lock")

_ATTEMPTS = 3
_AT_ONCE = 4
_TIMEOUT_SECONDS = 30
_QUIET_SECONDS = 2.0
_WAITING = "another process is fetching Kafka's jars; waiting for it"
_COORDINATES = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class Jar:
    """One pinned jar: `group:artifact:version`, its length and its SHA-256 in hex."""

    coordinates: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinates.split(":")
        return f"{artifact}-{version}.jar"


Fetch = Callable[[Jar, Path], Path]
"""Gets one jar into a scratch folder and returns where it lies; OSError or RuntimeError if not."""


def read_lock(path: Path = LOCK_FILE) -> list[Jar]:
    """The pinned jars in order; LocalKafkaError if the list is damaged."""
    jars = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        match line.split():
            case [sha256, size, coordinates] if (
                re.fullmatch("[0-9a-f]{64}", sha256)
                and size.isdecimal()
                and _COORDINATES.fullmatch(coordinates)
            ):
                jars.append(Jar(coordinates, int(size), sha256))
            case _:
                raise LocalKafkaError(
                    f"{path}, line {number}: not `sha256 size group:artifact:version`: {line!r}",
                    hint="reinstall springtide",
                )
    if len({jar.file_name for jar in jars}) < len(jars):
        raise LocalKafkaError(f"{path}: two jars have one file name", hint="reinstall springtide")
    return jars


def cache_dir(lock_file: Path = LOCK_FILE) -> Path:
    """Where the jars of this list are kept: a folder named by the list's hash."""
    digest = hashlib.sha256(lock_file.read_bytes()).hexdigest()[:16]
    return cache_root() / "kafka" / digest


def is_cached(lock_file: Path = LOCK_FILE) -> bool:
    """Whether every jar is in the cache and is what it should be."""
    directory = cache_dir(lock_file)
    return all(_is_sound(directory / jar.file_name, jar) for jar in read_lock(lock_file))


def ensure_jars(
    lock_file: Path = LOCK_FILE, *, fetch: Fetch | None = None, say: Say | None = None
) -> list[Path]:
    """The class path: every pinned jar, checked now, fetched first where it is missing or damaged.

    `fetch` gets one jar (by default through jgo), `say` is told what goes on (by default stderr).
    Raises JarFetchError (no network, not found), JarChecksumError (what came is not what was
    pinned), MissingExtraError (no jgo) or LocalKafkaError (the cache cannot be written).
    """
    jars = read_lock(lock_file)
    directory = cache_dir(lock_file)
    class_path = [directory / jar.file_name for jar in jars]
    if not _unsound(directory, jars):
        return class_path
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with in_turn(directory / "lock", say or on_stderr, _WAITING):
            for leftover in directory.glob("fetching-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            # Whoever held the lock before may have fetched them.
            if missing := _unsound(directory, jars):
                with tempfile.TemporaryDirectory(prefix="fetching-", dir=directory) as scratch:
                    _fetch_all(
                        missing, directory, Path(scratch), fetch or _jgo_fetch(), say or on_stderr
                    )
    except OSError as error:
        raise LocalKafkaError(
            f"cannot write Kafka's jars to {directory}: {error.strerror or error}",
            hint="set XDG_CACHE_HOME to a folder that you may write",
        ) from error
    return class_path


def _fetch_all(jars: list[Jar], directory: Path, scratch: Path, fetch: Fetch, say: Say) -> None:
    total = _megabytes(sum(jar.size_bytes for jar in jars))
    say(
        f"fetching {len(jars)} jars ({total} MB) of Apache Kafka {KAFKA_VERSION}, once, "
        f"into {directory}"
    )
    started = said = time.monotonic()
    done: list[Jar] = []
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="jars") as pool:
        stop = threading.Event()

        def fetch_next(jar: Jar) -> Jar:
            if not stop.is_set():
                _fetch_one(jar, directory, scratch, fetch)
            return jar

        try:
            for jar in pool.map(fetch_next, jars):
                done.append(jar)
                if time.monotonic() - said > _QUIET_SECONDS:
                    said = time.monotonic()
                    so_far = _megabytes(sum(jar.size_bytes for jar in done))
                    say(f"  {len(done)} of {len(jars)} jars, {so_far} of {total} MB")
        finally:
            stop.set()
    say(f"fetched and checked {len(jars)} jars in {time.monotonic() - started:.0f} s")


def _fetch_one(jar: Jar, directory: Path, scratch: Path, fetch: Fetch) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        # A place of its own for each attempt: half a file of the last one must not be found.
        place = scratch / f"{jar.file_name}-{attempt}"
        try:
            fetched = fetch(jar, place)
        except (OSError, RuntimeError) as error:
            if attempt < _ATTEMPTS:
                time.sleep(0.5 * attempt)
                continue
            raise JarFetchError(
                f"could not fetch {jar.coordinates} in {_ATTEMPTS} attempts: {error}",
                hint=_way_out(error, directory),
            ) from error
        if _is_sound(fetched, jar):
            fetched.replace(directory / jar.file_name)
            return
        if attempt == _ATTEMPTS:
            raise JarChecksumError(
                f"{jar.coordinates} as fetched is not the jar that was tested: SHA-256 "
                f"{_sha256(fetched)}, {fetched.stat().st_size} bytes, where {jar.sha256}, "
                f"{jar.size_bytes} bytes is pinned",
                hint="the repository or a proxy on the way gives out another file; it is not used",
            )


def _way_out(error: Exception, directory: Path) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return (
            "somebody on the way signs with an authority that Python does not know: if that is "
            "your company's proxy, point REQUESTS_CA_BUNDLE to its certificates"
        )
    return (
        "the local broker's jars are fetched once: connect to the network, or copy "
        f"{directory} from a machine that has them, or use another cluster with "
        "--bootstrap-servers"
    )


def _jgo_fetch() -> Fetch:
    context = _jgo_context()

    def fetch(jar: Jar, place: Path) -> Path:
        return Path(context(place).create_dependency(jar.coordinates).artifact.resolve())

    return fetch


def _jgo_context() -> "Callable[[Path], MavenContext]":
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
    except ImportError as error:
        raise MissingExtraError("jgo, which fetches Kafka's jars,", "local") from error
    # It warns when a repository publishes another SHA-1; ours is the checksum that decides.
    logging.getLogger("jgo").setLevel(logging.ERROR)
    # Mirrors of a company stand in jgo's own settings file; they are asked first.
    repositories = GlobalSettings.load().repositories
    repositories = {**repositories}
    repositories.setdefault("central", MAVEN_CENTRAL_URL)

    def context(place: Path) -> "MavenContext":
        return MavenContext(
            repo_cache=place,
            local_repos=[],
            remote_repos=repositories,
            timeout=_TIMEOUT_SECONDS,
        )

    return context


def _unsound(directory: Path, jars: Iterable[Jar]) -> list[Jar]:
    return [jar for jar in jars if not _is_sound(directory / jar.file_name, jar)]


def _is_sound(path: Path, jar: Jar) -> bool:
    try:
        return path.stat().st_size == jar.size_bytes and _sha256(path) == jar.sha256
    except (FileNotFoundError, NotADirectoryError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _megabytes(size_bytes: int) -> int:
    return round(size_bytes / 1e6)


def resolve_lock(roots: tuple[str, ...], place: Path) -> str:
    """The text of a lock file: `roots` and all that they need, as jgo resolves them today."""
    context = _jgo_context()(place)
    inputs, needed = context.resolver.resolve([context.create_dependency(root) for root in roots])
    lines = []
    for dependency in [*inputs, *needed]:
        artifact = dependency.artifact
        coordinates = f"{artifact.groupId}:{artifact.artifactId}:{artifact.version}"
        path = Path(artifact.resolve())
        lines.append((coordinates, f"{_sha256(path)} {path.stat().st_size:>8} {coordinates}\n"))
    return "".join(line for _, line in sorted(lines))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as _place:
        sys.stdout.write(
            f"# The jars of {' + '.join(ROOTS)}: SHA-256, bytes, coordinates.\n"
            "# Written by `python -m pipeline.local.kafka_jars`; "
            "the hash of this file names the cache.\n" + resolve_lock(ROOTS, Path(_place))
        )
