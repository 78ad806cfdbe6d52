"""The language: match, update, projection, sort, expressions, stages. Pure functions over documents."""
