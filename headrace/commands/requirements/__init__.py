"""What commands require where that depends on the request: pipelines, writes, cursors and operations of others."""
