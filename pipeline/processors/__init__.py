"""Pure functions of the pipeline: models, peaks, policies, offers and placement decisions.

No module here uses Kafka, the API server, a clock or unseeded randomness. So the same code gives
the same bits live, in a replay and in a test.
"""
