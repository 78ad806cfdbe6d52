"""The stages of aggregation pipelines, one file per stage or family; `table.py` lists them."""
