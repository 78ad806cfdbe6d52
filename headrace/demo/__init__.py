"""The demonstration: a day of flights goes through a server, its change stream and Spark into a table."""
