"""Text that explains published records: predictions, offers, model state, usage series."""
