"""Authentication and authorization: credentials and SCRAM, users, roles, privileges. Pure functions, no I/O.

Users and roles are documents of `admin.system.users` and `admin.system.roles`, in MongoDB's form. `dispatch/access.py`
connects them to the connections of a server.
"""
