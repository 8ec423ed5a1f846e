"""Which broken contracts can a rank meet?

One tree for all of `workers`. A lost peer is here too: inside the exchange it unwinds the step, and the trainer turns
it into a value at once.
"""


class WorkerError(Exception):
    """The root of what the workers raise."""


class PeerLost(WorkerError):
    """A peer's connection ended, or an exchange was told to stop: the step is dropped, the state is untouched."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(f"rank {rank}: {why}")
        self.rank = rank
        self.why = why


class StepAborted(WorkerError):
    """The step was told to stop between two of its parts; nothing of it is kept."""


class ProgramError(WorkerError):
    """The user's program does not import, build, or return what it must: never retried."""


class LossNotFinite(ProgramError):
    """The reduced loss is NaN or infinite."""


class DivergenceError(WorkerError):
    """Two members hold different states for the same step: the promise is broken, so the job stops loudly."""


class RestoreError(WorkerError):
    """Checkpoints exist, but none of them verifies; starting from zero would hide the loss."""


class WireError(WorkerError):
    """A message breaks the wire contract: wrong size, generation, sequence or secret."""


class StorageError(WorkerError):
    """The storage refuses a read or write."""
