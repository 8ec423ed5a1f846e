"""What does the controller process do from its start to its end?

Wait for the lease, begin a term, connect to Ray, and turn the loop until deposed. It must not decide or serve HTTP.
"""

import os
import secrets
import socket
import time
from datetime import timedelta

import structlog

from service.clock import utc_now
from service.cluster.ray_cluster import RayCluster
from service.errors import ClusterAway, Deposed
from service.reconciler import Reconciler, Stores
from service.settings import Settings
from service.store.bulk import BulkStore
from service.store.engine import migrate, open_engine
from service.store.jobs import JobStore
from service.store.lease import FileLease, new_term
from workers.storage import open_storage

POLL = timedelta(seconds=0.1)
"""How soon a wish that the API stored is looked at; everything else wakes the loop by itself."""
STANDBY = 0.5

log = structlog.get_logger()


def run_controller(settings: Settings) -> int:
    """Lead until another controller does. Returns the process's exit code."""
    lease = FileLease(settings.home / "controller.lock")
    while not lease.is_held():
        time.sleep(STANDBY)
    engine, bulk = open_engine(settings.database_url), open_engine(settings.metrics_url, "NORMAL")
    migrate(engine, "truth")
    migrate(bulk, "bulk")
    term = new_term(engine, f"{socket.gethostname()}:{os.getpid()}", utc_now())
    log.info("leading", term=term)
    cluster = RayCluster(settings.ray_address, settings.scratch)
    storage = open_storage(str(settings.storage))
    stores = Stores(JobStore(engine, term), BulkStore(engine, bulk, term), storage, str(settings.storage))
    reconciler = Reconciler(stores, cluster, utc_now, lambda: secrets.token_hex(32))
    woken: frozenset[str] = frozenset()
    while True:
        try:
            reconciler.turn(woken)
        except ClusterAway as error:
            log.warning("waiting for Ray", why=str(error))
            time.sleep(1.0)
        except Deposed as error:
            log.warning("deposed", why=str(error))
            return 3
        woken = cluster.wait(reconciler.pause(POLL))
