"""The commands on databases, collections, views and indexes."""
