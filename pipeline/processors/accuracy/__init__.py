"""Predicted peaks of Prod held against what happened: the records of `springtide.accuracy`."""
