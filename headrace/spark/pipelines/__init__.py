"""MongoDB pipelines on Spark; `headrace.query` parses and evaluates them."""
