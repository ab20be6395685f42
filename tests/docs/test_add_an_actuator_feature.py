"""The feature of docs/how-to/add-an-actuator-feature.md writes, and causes no other record."""

from pathlib import Path

from tests.docs.guides import blocks, run


def test_the_guides_feature_writes_its_annotation(tmp_path: Path) -> None:
    module, check = blocks("add-an-actuator-feature.md", "python")
    (tmp_path / "peak_annotations.py").write_text(module)
    local = check.replace("actuators.cluster.peak_annotations", "peak_annotations")
    # Its writes cause no other record of the Node.
    record = (
        "from pipeline.processors.kubernetes.object_records import node_record\n"
        "node = {'metadata': {'name': 'n', 'annotations': {PEAK: '2.5'}}}\n"
        "print(node_record(node).annotations)\n"
    )
    assert run(local + record, tmp_path) == "{}\n"
