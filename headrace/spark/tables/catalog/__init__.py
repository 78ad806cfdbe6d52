"""Tables of Spark's own catalogs, Delta's or Iceberg's, which Spark reads and writes: mirrors, logs, histories."""
