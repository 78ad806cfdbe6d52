"""`headrace oplog`, `status` and `top`: the activity of a Headrace or MongoDB server."""
