"""Reading cgroups (v1 and v2) and /proc: numbers of the kernel, or a stated reason why not.

Used by the exporter and by the node actuator; imports nothing of either. Every path goes through
roots that the caller gives, so that a container can read its host and a test can read a made tree.
What the kernel does not offer is None, a cgroup that has gone is `CgroupGoneError`, a file that
cannot be understood is `KernelFileError`: nothing is guessed and nothing unknown becomes 0.

    parse      text of the kernel -> numbers, pure
    formulas   two readings -> usage, pure
    paths      names of the kubelet's cgroup drivers and of container runtimes, pure
    discovery  which pods and containers exist, by the names of their cgroups
    files      one kernel file, kept open and read in place
    cgroup     one cgroup's counters, the same for v1 and v2
    proc       the node's counters
"""
