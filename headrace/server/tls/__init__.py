"""TLS on the server's sockets: contexts from files, handshakes, certificates."""
