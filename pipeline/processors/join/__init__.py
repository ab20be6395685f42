"""The join: each sample together with what is known of its node and pods, as one window."""
