"""The stages of aggregation pipelines, one file per stage or family; `pipeline.py` lists them."""
