"""The examples in the docstrings of `pipeline.topics` and of the partitioner are true."""

import doctest
import importlib
import pkgutil

import pytest

import pipeline.topics

MODULES = [
    "pipeline.kafka.partition",
    *(name for _, name, _ in pkgutil.iter_modules(pipeline.topics.__path__, "pipeline.topics.")),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [
        t for name in MODULES for t in finder.find(importlib.import_module(name)) if t.examples
    ]
    assert len(examples) >= 5
