"""Everything that talks to Kafka: clients, topic administration, reading and writing topics."""
