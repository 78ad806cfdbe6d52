"""Test tools for programs that use Headrace."""
