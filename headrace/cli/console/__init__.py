"""`headrace console`: a page on loopback that shows what a server, Headrace or MongoDB, holds and does.

    browser ──HTTP──▶ gate.py         other origins, names of hosts, missing tokens and large bodies end here
                      application.py  the routes; each asks with the credentials of the session that calls
                      sessions.py     cookies, and the servers' connections, which equal credentials share
    browser ◀──SSE─── broadcast.py    a bounded queue for each browser: a slow one loses messages, and is told
                      sampler.py      one thread for each connection: figures every two seconds, for an hour
                      tailing.py      one thread for each change stream, which browsers share

Rule: the console is a client like any other, through pymongo, and it only reads.
"""
