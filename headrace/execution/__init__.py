"""The execution steps that commands share: finding documents, running pipelines, opening cursors."""
