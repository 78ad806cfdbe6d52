"""The Spark data source `headrace`: its contract with Spark, its options, and admission control."""
