"""YAML that `kubectl` reads as it was meant."""

import json
import subprocess

import pytest

from pipeline.cli.kubernetes_yaml import objects_yaml
from pipeline.local.build_programs import ensure_programs

NAMES = ("web", "1e3", "5e-3", "0o17", "y", "N", "no", "12", "null", "1e3a")


@pytest.mark.plane
def test_kubectl_reads_names_that_look_like_numbers() -> None:
    """PyYAML and Go differ in what a number is."""
    objects = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": name}}
        for name in NAMES
    ]
    arguments = ("annotate", "--local", "-f", "-", "a=b", "-o", "json")
    run = subprocess.run(
        [ensure_programs()["kubectl"], *arguments],
        input=objects_yaml(objects),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    decoder, rest, read = json.JSONDecoder(), run.stdout.strip(), []
    while rest:
        item, end = decoder.raw_decode(rest)
        read.append((item["metadata"]["name"], item["data"]["a"]))
        rest = rest[end:].strip()
    assert read == [(name, name) for name in NAMES]


def test_texts_are_quoted_only_where_they_must_be() -> None:
    assert objects_yaml([{"name": "web", "size": 1e22}]) == "name: web\nsize: 1.0e+22\n"
