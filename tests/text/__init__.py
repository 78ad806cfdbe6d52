"""Tests of text search: words and scores, indexes, queries, and a comparison with an evaluation of its own."""
