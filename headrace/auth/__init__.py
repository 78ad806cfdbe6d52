"""Who a client is and what it may do: credentials and SCRAM, users, roles, privileges. Pure functions, no I/O."""
