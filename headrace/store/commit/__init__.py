"""The commit of a client's transaction: at once, or in pieces, which others do not see."""
