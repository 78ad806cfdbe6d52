"""What is shipped for the tests of programs that use Headrace."""
