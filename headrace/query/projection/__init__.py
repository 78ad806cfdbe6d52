"""Projections of find and `$project`: which fields of a document are returned, and what is computed."""

from headrace.query.projection.projection import Projection, included_fields, parse_projection

__all__ = ["Projection", "included_fields", "parse_projection"]
