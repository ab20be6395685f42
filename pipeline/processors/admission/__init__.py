"""Admission of pods: ClusterColocationProfiles applied to new pods, and pods that are refused."""
