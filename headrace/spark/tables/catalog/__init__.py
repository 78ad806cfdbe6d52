"""Tables of Spark's catalogs, in Delta or Iceberg, which Spark reads and writes: mirrors, logs, histories."""
