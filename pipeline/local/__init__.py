"""Run Kafka, a Kubernetes control plane, Prometheus and the demo on this machine."""
