"""Changes of the level of usage of node pools and workloads, found in hourly means."""
