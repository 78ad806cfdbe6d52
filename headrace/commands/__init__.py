"""One file per command; `table.py` lists them all. Plain functions: they never await."""
