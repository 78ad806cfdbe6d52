"""Text search: words of texts, their stems and scores, and searches for them. Pure functions.

`analyzer` divides a text into terms; `text_spec` knows which texts of a document an index has, and scores their terms;
`search` is a parsed `$text`. The stemmers are imported once a text index or a search is used.
"""
