"""Commands about users and roles: logging in and out, creating, changing, showing."""
