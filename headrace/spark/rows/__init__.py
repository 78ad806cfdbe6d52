"""The rows of the source: their columns, their tokens, and how they represent documents."""
