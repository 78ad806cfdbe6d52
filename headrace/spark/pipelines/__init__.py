"""MongoDB pipelines on Spark: parsed by `headrace.query`, compiled to columns where exact, else its evaluator runs."""
