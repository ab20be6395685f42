"""CPUs of nodes for tests."""

from hypothesis import strategies as st

from pipeline.processors.node_qos.node_state import LogicalCpu


def topology(sockets: int, cores: int, threads: int, *, siblings_apart: bool) -> list[LogicalCpu]:
    """CPUs of a node; each socket is a NUMA node. Hyper-threads have numbers next to each other, or
    half the node apart, as on most machines."""
    total = sockets * cores
    return [
        LogicalCpu(
            cpu=core + thread * total if siblings_apart else core * threads + thread,
            core=core,
            socket=core // cores,
            node=core // cores,
        )
        for core in range(total)
        for thread in range(threads)
    ]


@st.composite
def regular(draw: st.DrawFn) -> list[LogicalCpu]:
    numbers = (draw(st.integers(1, most)) for most in (4, 6, 2))
    cpus = topology(*numbers, siblings_apart=draw(st.booleans()))
    return draw(st.permutations(cpus))


@st.composite
def irregular(draw: st.DrawFn) -> list[LogicalCpu]:
    """CPUs as an absurd machine numbers them: cores of one or of four threads, sockets across NUMA
    nodes."""
    numbers = draw(st.lists(st.integers(0, 40), unique=True, max_size=14))
    small = st.integers(0, 2)
    return [LogicalCpu(cpu, draw(st.integers(0, 4)), draw(small), draw(small)) for cpu in numbers]


ANY = st.one_of(regular(), irregular())
