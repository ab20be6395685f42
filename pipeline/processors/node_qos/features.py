"""The features of the node actuator, in the order in which they decide."""

from pipeline.processors.node_qos.batch_resources import BatchResources
from pipeline.processors.node_qos.block_io import BlockIo
from pipeline.processors.node_qos.cpu_burst import CpuBurst
from pipeline.processors.node_qos.cpu_identity import CpuIdentity
from pipeline.processors.node_qos.cpu_idle import CpuIdle
from pipeline.processors.node_qos.cpu_normalization import CpuNormalization
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.memory_qos import MemoryProtection
from pipeline.processors.node_qos.mid_resources import MidResources
from pipeline.processors.node_qos.node_state import Feature
from pipeline.processors.node_qos.node_sysctl import NodeSysctl
from pipeline.processors.node_qos.share_pool import SharePool


def built_features(
    pressure_percent: float | None, forecast_sigmas: float | None
) -> tuple[Feature, ...]:
    """A new set of all features, without memory of earlier rounds. The arguments are those of
    `CpuSuppression`."""
    return (
        CpuSuppression(pressure_percent, forecast_sigmas),
        SharePool(),
        CpuIdle(),
        CpuIdentity(),
        BatchResources(),
        MidResources(),
        CpuNormalization(),
        CpuBurst(),
        MemoryProtection(),
        BlockIo(),
        NodeSysctl(),
    )
