"""The commands, one file each, as plain functions that never await. `table.py` lists them all."""
