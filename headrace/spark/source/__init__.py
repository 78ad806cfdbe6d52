"""The data source `headrace`, which Spark calls in `data_source.py`: from a server, or an archive of it, to rows."""
