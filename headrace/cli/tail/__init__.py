"""`headrace tail`: follows a change stream at the prompt."""
