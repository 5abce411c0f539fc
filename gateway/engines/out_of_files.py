"""What a new connection fails with by the gateway's own fault. Not compiled: mypyc cannot extend `OSError`."""


class OutOfFilesError(OSError):
    """This process, or its machine, has no file descriptor left: that says nothing of the engine."""
