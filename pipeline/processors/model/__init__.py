"""The models of nodes: decayed histograms, moments, recent usage, and the peaks they predict."""
