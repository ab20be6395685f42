"""The worker: joins samples into windows, learns models, and publishes predictions.

`partition_holder` loads and releases the partitions that a consumer group assigns (`recovery`).
`consume` feeds samples to `join_agent`, which appends windows to the log. `window_handover` passes
them on in memory to `model_agent`, which applies them in order and publishes results
(`apply_windows`). `checkpoint_rounds` writes the models. Positions are offsets in the data, not
commits. `faust_host` alone imports Faust.
"""
