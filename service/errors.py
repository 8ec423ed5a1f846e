"""Which contracts of the control plane can break?"""


class ServiceError(Exception):
    """The root of what the control plane raises."""


class NotFound(ServiceError):
    """There is no such thing."""


class Conflict(ServiceError):
    """The wish contradicts the state the thing is in."""


class Fenced(ServiceError):
    """Another writer changed the row: what was decided is void, and is decided anew."""


class Deposed(ServiceError):
    """A newer term holds the lease: this controller must end."""


class ForbiddenMove(ServiceError):
    """A decision would take a job to a phase that none may reach from where it is."""


class ClusterAway(ServiceError):
    """Ray does not answer; nothing is known, which is not the same as nothing being there."""


class Unsupported(ServiceError):
    """The installation cannot work as configured."""
