"""The feature of docs/how-to/add-an-actuator-feature.md satisfies the protocol and writes."""

from pathlib import Path

from tests.docs.guides import blocks, run


def test_the_guides_feature_writes_its_annotation(tmp_path: Path) -> None:
    module, check = blocks("add-an-actuator-feature.md", "python")
    (tmp_path / "peak_annotations.py").write_text(module)
    local = check.replace("actuators.cluster.peak_annotations", "peak_annotations")
    protocol = "\nfrom actuators.cluster.feature import Feature\n" + (
        "missing = {name for name in vars(Feature) if not name.startswith('_')}"
        " - set(dir(PeakAnnotations))\nprint(sorted(missing))\n"
    )
    assert run(local + protocol, tmp_path) == "[]\n"
