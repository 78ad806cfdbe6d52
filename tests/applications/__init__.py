"""Object mappers, frameworks and tools as they are, from their packages: each does its work against a Headrace."""
