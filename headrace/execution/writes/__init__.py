"""What writes documents: those that match changed or deleted, new ones inserted, and the outputs of pipelines."""
