"""Estimators of the library river, declared in settings and stored as bytes."""
