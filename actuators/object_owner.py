"""The label that tells objects written by Springtide from those of others."""

from typing import Final

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OURS: Final = "springtide"
