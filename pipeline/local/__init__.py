"""A real Apache Kafka on this machine, with nothing but pip: Java, jars, broker."""
