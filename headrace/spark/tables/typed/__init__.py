"""Tables with typed columns in place of documents: their schema, and mirrors and histories of that kind."""
