"""Mirrors as collections of a MongoDB or a Headrace."""
