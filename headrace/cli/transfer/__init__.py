"""`headrace export` and `import`: collections to files and back, as JSON lines, CSV, or BSON as mongodump writes it."""
