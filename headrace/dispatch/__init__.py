"""From a message's body to a command's reply: the engine, requests, arguments, sessions, transactions, waits."""
