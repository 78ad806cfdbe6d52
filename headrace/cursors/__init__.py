"""Cursors: documents, the oplog and change streams read batch by batch, and the state that streams share.

    commit ──▶ feed (share key)          ──▶ cursor (client)  ──▶ getMore
               new entries, built events     its token
    oplog ─────────────────────────────────▶ cursor, when it lags

Feeds are bounded in entries and bytes, and drop items older than ten to twenty seconds. A stream that is
left open, or read seldom, costs only the memory of its cursor. Feed and cursor build the events of a large transaction
64 operations at a time, and the next getMore continues in the middle of its entry.
"""
