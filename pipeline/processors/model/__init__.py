"""The model of each node: decayed histograms, moments and recent usage, and the peaks they predict."""
