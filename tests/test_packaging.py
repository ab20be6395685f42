"""What an installation owes its users: light exporters, exact pins, no registry tied in."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HOSTS = re.compile(
    r"\b(?:pypi\.org|pythonhosted\.org|maven\.org|maven\.apache\.org|repo1\.|docker\.io|ghcr\.io"
    r"|quay\.io|proxy\.golang\.org)"
)
HERE = Path(__file__).relative_to(Path(__file__).parent.parent)


def tracked(project: Path) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=project, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    return [Path(name) for name in listed.split("\0") if name]


def test_files_name_no_package_registry(project: Path) -> None:
    found = []
    for path in tracked(project):
        if path == HERE or not (project / path).is_file():
            continue
        text = (project / path).read_text("utf-8", "replace")
        found += [f"{path}: {host}" for host in HOSTS.findall(text)]
    assert found == []


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", path.read_text(), re.MULTILINE))


def wanted(requirements: list[str]) -> dict[str, str]:
    split = [re.fullmatch(r"([A-Za-z0-9-]+)(.*)", row) for row in requirements]
    return {found[1].lower(): found[2] for found in split if found}


def test_locks_contain_every_dependency_with_hashes(project: Path) -> None:
    metadata = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    extras = metadata["optional-dependencies"]
    base = wanted(metadata["dependencies"])
    local = [*extras["local"], *extras["control-plane"]]
    for name, required in {
        "dev": base | wanted([*extras["pipeline"], *extras["tracing"], *local, *extras["dev"]]),
        "pipeline": base | wanted([*extras["pipeline"], *extras["tracing"]]),
        "exporter": base,
    }.items():
        lock = project / f"requirements-{name}.lock"
        assert required.keys() <= pins(lock).keys(), f"run `make lock`: {name}"
        blocks = re.split(r"^(?=[a-z0-9-]+==)", lock.read_text(), flags=re.MULTILINE)[1:]
        assert all("--hash=sha256:" in block for block in blocks)
        # No --find-links, no --index-url: they would be specific to the machine that made the lock.
        assert not re.findall(r"^-.*|file:", lock.read_text(), re.MULTILINE)


def test_images_have_the_tested_versions(project: Path) -> None:
    tested = pins(project / "requirements-dev.lock").items()
    for name in ("pipeline", "exporter"):
        assert pins(project / f"requirements-{name}.lock").items() <= tested


def printed(project: Path, code: str) -> list[str]:
    """Run `code` in a new process with the packages of the project; return the words it prints."""
    shown = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project, env={"PYTHONPATH": f"{project}:{project / 'node-exporter'}"},
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    return shown.stdout.split()


@pytest.mark.parametrize(
    "module", ["pipeline.cli.main", "pipeline.topics", "pipeline.metrics", "node_exporter"]
)
def test_exporter_imports_no_heavy_packages(module: str, project: Path) -> None:
    heavy = {"numpy", "pyarrow", "faust", "mode", "kubernetes", "aiohttp", "rich", "river"}
    code = f"import sys, {module}; print(*sorted({heavy!r} & set(sys.modules)))"
    assert printed(project, code) == []


def test_no_command_imports_what_only_tests_and_notebooks_need(project: Path) -> None:
    """pyarrow imports pandas with the first `pa.array`, where it is installed."""
    code = """
import importlib, pkgutil, sys, pipeline.cli
for module in pkgutil.iter_modules(pipeline.cli.__path__):
    importlib.import_module(f"pipeline.cli.{module.name}")
print(*{"duckdb", "pandas", "polars"} & {*sys.modules})
"""
    assert printed(project, code) == []


GPU_MODULES = {
    "amdsmi", "cuda", "cudf", "cupy", "jax", "numba", "nvidia", "py3nvml", "pycuda", "pynvml",
    "pyrsmi", "tensorflow", "torch", "triton",
}  # fmt: skip
GPU_PACKAGES = re.compile(
    r"amdsmi|cud[af]|cupy|jax|numba|nvidia|nvml|rocm|rsmi|tensorflow|torch|triton"
)


def test_every_module_is_imported_without_cuda(project: Path) -> None:
    """With every GPU library refused, the import of no module fails or asks for one."""
    code = f"""
import importlib, pkgutil, sys
asked = set()
class Refuse:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in {GPU_MODULES!r}:
            asked.add(name)
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse)
for package in ("pipeline", "actuators", "node_exporter"):
    path = importlib.import_module(package).__path__
    for module in pkgutil.walk_packages(path, f"{{package}}."):
        importlib.import_module(module.name)
print(*sorted(asked))
"""
    assert printed(project, code) == []


def test_no_requirement_is_a_gpu_library(project: Path) -> None:
    """Neither pins nor extras name a GPU library."""
    metadata = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    names = set(wanted(metadata["dependencies"]))
    names.update(*(wanted(extra) for extra in metadata["optional-dependencies"].values()))
    for lock in project.glob("requirements-*.lock"):
        names.update(pins(lock))
    assert {"numpy", "aiokafka", "river"} <= names
    assert [name for name in names if GPU_PACKAGES.search(name)] == []


def test_every_package_is_typed_and_licensed(project: Path) -> None:
    for package in ("pipeline", "actuators", "node-exporter/node_exporter"):
        assert (project / package / "py.typed").is_file()
    assert "Apache License" in (project / "LICENSE").read_text()


def test_make_help_lists_every_target(project: Path) -> None:
    shown = subprocess.run(
        ["make", "help"], cwd=project, capture_output=True, check=True, text=True
    ).stdout
    targets = ("setup", "test", "lint", "demo", "bench", "soak", "fuzz", "lock", "clean")
    assert [target for target in targets if f"make {target} " not in shown] == []
