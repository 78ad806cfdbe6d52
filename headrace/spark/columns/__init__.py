"""Documents as typed columns and a rest, and back: types, schemas, inference, evolution. Without Spark."""
