"""Run Kafka, a Kubernetes control plane and the demo on this machine."""
