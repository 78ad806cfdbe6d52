"""What the source refuses."""


class OptionError(ValueError):
    """An option of the source has a value that it does not take, or is missing."""
