"""Models of nodes: what they learn from windows, and the peaks that predictors compute from them.

From a window to a published peak:

1. `window_batch` reads decoded windows into arrays; a `TrainingBatch` has those to learn.
2. `training_samples` makes one sample for each entity: the node, its system, its classes and pods.
3. `learner` adds the samples to `entity_models`: for each entity a decayed histogram, moments, and
   a day of slots (`day_slots`). Per node it stores the last half hour (`usage_points`) and changes
   of level (`drift`).
4. `peak_prediction` gives the models as a `View` to each `predictor`, and computes what Prod leaves
   unused from the `Peaks` that it returns (`cold_start`, `reclaimable`); results are `node_peaks`.
5. `publish_policy` selects the peaks to publish, `result_records` encodes them.

A `bank` has the nodes of one partition; banks of several partitions share one learner, so that a
call spans them. The columns are in one `node_store`, which gives rows to nodes, and saves and
restores the models of a node (`saved_models`, encoded by `state_codec`).
A row is the number of an entity in `entity_models`, a slot that of a node in the columns per node.
Arrays (.., 2) are cpu and memory, NaN is unknown.
"""
