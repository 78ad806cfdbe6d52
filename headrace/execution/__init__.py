"""The parts of a request's execution that commands share: finding documents, running pipelines, opening cursors."""
