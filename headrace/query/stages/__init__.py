"""The stages of aggregation pipelines, one file per stage or family; `stage_table.py` lists them."""
