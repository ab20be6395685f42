"""Springtide: usage of every node as a stream, peaks predicted from it, answers for schedulers.

The import name `pipeline` holds everything that is not the node exporter (`node_exporter`) and
not an actuator (`actuators`). Importing it costs nothing; each part is imported where it is used.
"""

__version__ = "0.1.0"

API_VERSION = "springtide/v1"
"""Of the JSON documents that are served and printed."""
