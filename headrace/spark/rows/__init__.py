"""What a row of the source is: its columns, tokens, and how documents are told in them."""
