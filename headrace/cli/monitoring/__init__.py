"""`headrace oplog`, `status` and `top`: what a server, Headrace or MongoDB, is doing."""
