"""Commands of upkeep: what checks, measures, rewrites and compares collections."""
