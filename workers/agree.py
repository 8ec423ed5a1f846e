"""How do the members of a new generation come to one state?

They compare (step, digest) and those behind copy from one that is not; the same step with another digest is loud. It
must not train or restore.
"""

import msgspec

from workers.collectives.port import Group, Parcel
from workers.collectives.tree import TreeReduce, raw
from workers.errors import DivergenceError
from workers.protocol import Header, Restored, encode
from workers.regroup import start_of
from workers.state import Array, State


def agree(state: State, group: Group, tree: TreeReduce, header: Header, fresh: Restored | None) -> None:
    """Compare states with all members; those behind copy from the lowest rank with the highest step.

    `fresh`: what this rank restored, if it has not trained since; then nobody may be behind. DivergenceError.
    """
    start = start_of(tree.talk(msgspec.structs.replace(header, state=state.digest())))
    if start.behind and fresh is not None:
        raise DivergenceError(
            f"ranks {start.behind} restored another step than the others; this one restored step {fresh.step}"
        )
    if group.rank == start.source:
        head = encode([state.step, state.ledger, state.epoch_ledger])
        parcel = Parcel(head, [_bytes(state.arrays[name]) for name in state.names])
        group.exchange(dict.fromkeys(start.behind, parcel), {})
    elif group.rank in start.behind:
        _copy_from(state, group, start.source)
    else:
        group.exchange({}, {})
    after = msgspec.structs.replace(header, step=state.step, applied=state.step, state=state.digest())
    if start_of(tree.talk(after)).behind:
        raise DivergenceError("a copied state is not the state it was copied from")


def _copy_from(state: State, group: Group, source: int) -> None:
    scratch = state.copy()
    buffers = [_bytes(scratch[name]) for name in state.names]
    came = group.exchange({}, {source: buffers})
    step, ledger, epoch_ledger = msgspec.msgpack.decode(came[source], type=tuple[int, bytes, bytes])
    state.write(scratch)
    state.step, state.ledger, state.epoch_ledger = step, ledger, epoch_ledger


def _bytes(array: Array) -> memoryview:
    return raw(array.reshape(-1).view("u1"))
