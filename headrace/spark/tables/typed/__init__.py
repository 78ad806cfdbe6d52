"""Tables with typed columns in place of documents: their schema, and their mirrors, histories and logs."""
