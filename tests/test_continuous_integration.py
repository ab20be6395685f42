"""The workflow of the CI host parses and runs commands of this repository."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOW = ROOT / ".github/workflows/ci.yml"
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture
def jobs() -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    document = yaml.safe_load(WORKFLOW.read_text())
    assert set(document) == {"name", True, "permissions", "concurrency", "jobs"}
    found: dict[str, Any] = document["jobs"]
    return found


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_pull_requests_run_what_a_developer_runs(jobs: dict[str, Any]) -> None:
    assert {name: commands(job) for name, job in jobs.items()} == {
        "hosted": ["make test"], "cgroups": [".ci/run"], "nightly": ["make nightly"],
    }  # fmt: skip
    assert (ROOT / ".ci/run").read_text().endswith("exec make test\n")
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_every_target_that_it_calls_exists(jobs: dict[str, Any]) -> None:
    scripts = [(ROOT / ".ci/run").read_text()]
    scripts += [command for job in jobs.values() for command in commands(job)]
    called = set(re.findall(r"^(?:exec )?make ([a-z-]+)", "\n".join(scripts), re.MULTILINE))
    assert {"test", "nightly"} <= called <= TARGETS


def test_every_job_ends_and_checks_out_first(jobs: dict[str, Any]) -> None:
    for job in jobs.values():
        assert 0 < job["timeout-minutes"] <= 720
        assert job["steps"][0]["uses"].startswith("actions/checkout@")


def test_it_names_no_host() -> None:
    text = WORKFLOW.read_text() + (ROOT / ".ci/run").read_text()
    assert not re.findall(r"https?://|index-url|registry", text)
