"""Projections of find and `$project`: which fields of a document are returned, and what is computed."""

from headrace.query.projection.projection import Projection, parse_projection

__all__ = ["Projection", "parse_projection"]
