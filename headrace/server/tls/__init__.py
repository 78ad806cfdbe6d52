"""TLS on the server's sockets: contexts from files, handshakes in a thread, the layer between socket and peer."""
