"""`headrace console`: a page on loopback that shows the data and the activity of a Headrace or MongoDB server.

    browser ──HTTP──▶ application.py  a gate, where other origins, names of hosts, missing tokens and large bodies end;
                                      the routes; each queries the server with the session's credentials
                      sessions.py     cookies, and server connections, shared by sessions with equal credentials;
                                      a thread for each connection: figures every two seconds, kept for an hour
    browser ◀──SSE─── broadcast.py    a bounded queue for each browser; a slow browser loses messages and is told
                      tailing.py      one thread for each change stream, which browsers share

Rule: the console is a client like any other, through pymongo, and it only reads.
"""
