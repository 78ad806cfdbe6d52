"""Tables that Headrace keeps: a mirror's, by what a batch of rows leaves of each document, and a log of events."""
