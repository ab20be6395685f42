"""The only package that talks to Kafka: following topics, producing, and topic administration.

So a workaround for aiokafka is in one place, and every role connects, retries and fails alike.
"""
