"""The error of a new connection that fails because of this process. Not compiled: mypyc cannot extend `OSError`."""


class OutOfFilesError(OSError):
    """This process, or its machine, has no file descriptor left. The engine is not at fault."""
