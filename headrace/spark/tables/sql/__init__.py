"""Tables in relational databases."""
