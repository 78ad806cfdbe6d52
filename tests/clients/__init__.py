"""`make clients`: the drivers' own suites, unmodified, and what they may fail."""
