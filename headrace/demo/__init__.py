"""The demonstration: a day of flights through a server, its change stream and Spark, into a table."""
