"""Read cgroups (v1 and v2) and /proc.

The exporter and the demo use this package; it imports neither. Callers pass every root
path, so that a container can read its host and a test can read a directory tree of its own.

A value that the kernel does not offer is None, never 0. `CgroupGoneError` means that the cgroup was
removed, `KernelFileError` that a file cannot be read or parsed.

    parse_files   contents of kernel files -> integers
    formulas      definitions of usage and statistics
    cgroup_paths  cgroup names of the kubelet's drivers and of container runtimes
    discovery     list pods and containers by the names of their cgroups
    kernel_file   a kernel file that stays open and is read again in place
    cgroup        counters of one cgroup, the same interface for v1 and v2
    node_files    counters of the node
"""
