"""MongoDB pipelines on Spark: parsed and evaluated by `headrace.query`."""
