"""Change streams end to end: commands over a socket, answers as a client gets them."""
