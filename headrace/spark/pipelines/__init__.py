"""MongoDB pipelines on Spark: parsed by `headrace.query`, compiled to columns where exact, or evaluated by it."""
