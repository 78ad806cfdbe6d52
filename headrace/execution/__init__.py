"""What several commands share in carrying out a request: finding documents, running pipelines, opening cursors."""
