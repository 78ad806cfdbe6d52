"""Filters: a query document is parsed once into a predicate over documents.

predicate = parse_filter({"a": {"$gt": 1}})
predicate({"a": [0, 2]})                        -> True
predicate.matched_index({"a": [0, 2]})          -> "1"
"""

from headrace.query.match.filter_parser import Predicate, parse_filter

__all__ = ["Predicate", "parse_filter"]
