"""The pipeline: change events as a Spark source, and tables that follow a collection. A client like any other."""
