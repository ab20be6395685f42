"""Lines of `io.cost.qos` and `io.cost.model` can be written, compared and restored by key."""

import pytest

from actuators.node.knob_files import KNOB_FILES
from pipeline.processors.node_qos.cgroup_values import Knob

QOS = b"8:0 enable=1 ctrl=user rpct=95.00 rlat=2500 wpct=95.00 wlat=5000 min=50.00 max=150.00\n"
AUTO = b"8:0 ctrl=auto model=linear rbps=488636629 rseqiops=8932 rrandiops=8518 wbps=4 wseqiops=5\n"
LINES = [
    (Knob.IO_COST_ENABLE, QOS, "1", 1, "8:0 enable=1"),
    (Knob.IO_COST_ENABLE, b"", "", 0, "8:0 enable=0"),
    (Knob.IO_COST_READ_PERCENT, QOS, "95.00", 95, "8:0 rpct=95.00"),
    (Knob.IO_COST_READ_LATENCY, QOS, "2500", 2500, "8:0 rlat=2500"),
    (Knob.IO_COST_READ_LATENCY, b"8:16 enable=1 rlat=1\n", "", 0, "8:0 ctrl=auto"),
    (Knob.IO_MODEL_READ_BPS, AUTO, "auto", 0, "8:0 ctrl=auto"),
]


@pytest.mark.parametrize(("knob", "data", "text", "value", "line"), LINES)
def test_a_key_of_a_device(knob: Knob, data: bytes, text: str, value: int, line: str) -> None:
    for version in (1, 2):
        (file,) = KNOB_FILES[version][knob]
        assert file.text([data], "8:0") == text
        assert file.value(text) == value
        assert file.line(text, "8:0") == line
        assert file.name.startswith("blkio.cost." if version == 1 else "io.cost.")


@pytest.mark.parametrize(
    ("knob", "value"), [(Knob.IO_COST_ENABLE, 2), (Knob.IO_COST_READ_PERCENT, 101)]
)
def test_numbers_out_of_range_are_refused(knob: Knob, value: int) -> None:
    (file,) = KNOB_FILES[2][knob]
    assert file.text_of(1, "") == "1"
    with pytest.raises(ValueError, match="is not in"):
        file.text_of(value, "")
