"""Run Kafka, a Kubernetes control plane and the demo on this machine.

Every process that is started here ends with the process that started it, even by kill -9
(`process_guard`): a test or a demo that crashes must not leave a broker behind.
"""
