"""The evictor: `eviction_actuator` reads plans, `plan_execution` verifies and executes each."""
