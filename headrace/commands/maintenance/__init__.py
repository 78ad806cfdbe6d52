"""Maintenance commands: they check, measure, rewrite and compare collections."""
