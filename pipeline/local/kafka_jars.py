"""Download the broker's jars, pinned by coordinates and SHA-256, and verify them at every use.

`kafka-jars.lock` lists the jars. They are cached in a directory named by the hash of the list. A
jar is moved there atomically after its checksum is verified, so an interrupted download leaves no
damaged jar, and the next one continues. A file lock serializes downloads.

Dependencies are not resolved: only listed jars are downloaded. `python -m
pipeline.local.kafka_jars` resolves them and prints the list for a newer Kafka.
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

from pipeline.errors import LocalKafkaError, MissingExtraError
from pipeline.local.cache_folders import Report, cache_root, file_lock, print_to_stderr

if TYPE_CHECKING:
    from jgo.maven import MavenContext

KAFKA_VERSION: Final = "4.3.1"
ROOTS: Final = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
LOCK_FILE: Final = Path(__file__).with_name("kafka-jars.lock")

ATTEMPTS = 3
_PARALLEL_DOWNLOADS = 4
_TIMEOUT_SECONDS = 30
_PROGRESS_SECONDS = 2.0
_COORDINATES = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class Jar:
    """A pinned jar: `group:artifact:version`, size, and SHA-256 in hex."""

    coordinates: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinates.split(":")
        return f"{artifact}-{version}.jar"


Fetch = Callable[[Jar, Path], Path]
"""Download a jar into a scratch directory and return its path; raise OSError or RuntimeError."""


def read_lock(path: Path = LOCK_FILE) -> list[Jar]:
    """Read the pinned jars. Raises `LocalKafkaError` if the list is damaged."""
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
        raise LocalKafkaError(f"{path}: two jars have the same name", hint="reinstall springtide")
    return jars


def cache_dir(lock_file: Path = LOCK_FILE) -> Path:
    """Return the cache directory of the jars in this list."""
    digest = hashlib.sha256(lock_file.read_bytes()).hexdigest()[:16]
    return cache_root() / "kafka" / digest


def is_cached(lock_file: Path = LOCK_FILE) -> bool:
    """Return whether the cache has every jar with the right checksum."""
    directory = cache_dir(lock_file)
    return all(_is_verified(directory / jar.file_name, jar) for jar in read_lock(lock_file))


def ensure_jars(
    lock_file: Path = LOCK_FILE, *, fetch: Fetch | None = None, report: Report = print_to_stderr
) -> list[Path]:
    """Verify all pinned jars, download missing or damaged ones, and return their paths.

    `fetch` downloads a jar (default: by jgo), `report` receives lines of progress (default:
    standard error). Raises `LocalKafkaError` if a jar cannot be downloaded or written or is not the
    pinned one, `MissingExtraError` without jgo.
    """
    jars = read_lock(lock_file)
    directory = cache_dir(lock_file)
    class_path = [directory / jar.file_name for jar in jars]
    if not _missing_or_damaged(directory, jars):
        return class_path
    try:
        directory.mkdir(parents=True, exist_ok=True)
        waiting = "waiting for another process that downloads Kafka's jars"
        with file_lock(directory / "lock", report, waiting):
            for leftover in directory.glob("fetching-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            # The previous holder of the lock may have downloaded them.
            if missing := _missing_or_damaged(directory, jars):
                with tempfile.TemporaryDirectory(prefix="fetching-", dir=directory) as scratch:
                    _fetch_all(missing, directory, Path(scratch), fetch or _jgo_fetch(), report)
    except OSError as error:
        raise LocalKafkaError(
            f"cannot write Kafka's jars to {directory}: {error.strerror or error}",
            hint="set XDG_CACHE_HOME to a writable directory",
        ) from error
    return class_path


def _fetch_all(
    jars: list[Jar], directory: Path, scratch: Path, fetch: Fetch, report: Report
) -> None:
    total = _megabytes(sum(jar.size_bytes for jar in jars))
    report(
        f"downloading {len(jars)} jars ({total} MB) of Apache Kafka {KAFKA_VERSION} to {directory}"
    )
    started = reported = time.monotonic()
    done: list[Jar] = []
    with ThreadPoolExecutor(_PARALLEL_DOWNLOADS, thread_name_prefix="jars") as pool:
        stop = threading.Event()

        def fetch_next(jar: Jar) -> Jar:
            if not stop.is_set():
                _fetch_jar(jar, directory, scratch, fetch)
            return jar

        try:
            for jar in pool.map(fetch_next, jars):
                done.append(jar)
                if time.monotonic() - reported > _PROGRESS_SECONDS:
                    reported = time.monotonic()
                    done_megabytes = _megabytes(sum(jar.size_bytes for jar in done))
                    report(f"  {len(done)} of {len(jars)} jars, {done_megabytes} of {total} MB")
        finally:
            stop.set()
    report(f"downloaded and verified {len(jars)} jars in {time.monotonic() - started:.0f} s")


def _fetch_jar(jar: Jar, directory: Path, scratch: Path, fetch: Fetch) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        # Each attempt has its own directory, so that it does not use a partial file.
        place = scratch / f"{jar.file_name}-{attempt}"
        try:
            fetched = fetch(jar, place)
        except (OSError, RuntimeError) as error:
            if attempt < ATTEMPTS:
                time.sleep(0.5 * attempt)
                continue
            raise LocalKafkaError(
                f"cannot download {jar.coordinates} in {ATTEMPTS} attempts: {error}",
                hint=_download_hint(error, directory),
            ) from error
        if _is_verified(fetched, jar):
            fetched.replace(directory / jar.file_name)
            return
        if attempt == ATTEMPTS:
            raise LocalKafkaError(
                f"the downloaded {jar.coordinates} is not the tested jar: SHA-256 "
                f"{_sha256(fetched)}, {fetched.stat().st_size} bytes, pinned are "
                f"{jar.sha256}, {jar.size_bytes} bytes",
                hint="the repository or a proxy serves another file, which is not used",
            )


def _download_hint(error: Exception, directory: Path) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return (
            "a proxy signs with a CA that Python does not trust: if it is your company's, set "
            "REQUESTS_CA_BUNDLE to its certificates"
        )
    return (
        "connect to the network once to download the broker's jars, or copy "
        f"{directory} from another machine, or use another cluster with --bootstrap-servers"
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
        raise MissingExtraError("jgo, which downloads Kafka's jars,", "local") from error
    # jgo warns about SHA-1 of repositories; the pinned SHA-256 decides.
    logging.getLogger("jgo").setLevel(logging.ERROR)
    repositories = GlobalSettings.load().repositories
    # Mirrors in the settings file of jgo come first.
    repositories = {**repositories, "central": repositories.get("central", MAVEN_CENTRAL_URL)}
    return lambda place: MavenContext(
        repo_cache=place, local_repos=[], remote_repos=repositories, timeout=_TIMEOUT_SECONDS
    )


def _missing_or_damaged(directory: Path, jars: Iterable[Jar]) -> list[Jar]:
    return [jar for jar in jars if not _is_verified(directory / jar.file_name, jar)]


def _is_verified(path: Path, jar: Jar) -> bool:
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
    """Resolve `roots` and their dependencies with jgo, and return the text of a lock file."""
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
