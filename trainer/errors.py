"""What can go wrong because of what the user gave: one small tree, printed as one line, exit code 2."""


class UserError(Exception):
    """A mistake in what was given; its message says what, where, what is allowed and how to mend it."""


class ConfigError(UserError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""


class DataError(UserError):
    """The data set cannot be found, read or used."""


class ModelError(UserError):
    """The model cannot be found or is not a Whisper model."""


class CheckpointError(UserError):
    """A checkpoint is not whole, or does not hold what going on with the training needs."""


class DiskFullError(UserError):
    """A checkpoint does not fit on the disk."""


class DivergedError(UserError):
    """The model's loss is no finite number."""


def one_line(error: BaseException, most: int = 300) -> str:
    """What an error of a library says, on one line; its type where it says nothing."""
    return " ".join(str(error).split())[:most] or type(error).__name__
