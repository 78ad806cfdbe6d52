"""The rows of the source: their columns, their tokens, and the representation of documents in them."""
