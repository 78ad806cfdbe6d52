"""Change events: oplog entries in the form in which `$changeStream` returns them.

`builder.py` makes events. Conditions on the operation, the namespace and the key are tested before anything is built or
looked up, and a plain insert is built by slicing bytes. `resume.py` guards the start of a resumed stream: it drops the
event of the client's token, passes later events, and raises error 280 if the token's event is missing.
"""
