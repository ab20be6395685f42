"""The only package that talks to Kafka: following topics, producing, and topic administration."""
