"""What do all tests share? One Muster per session, made when the first test asks for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.client import Client
from tests.service_fixture import Muster, cli, leftovers


@pytest.fixture(scope="session")
def muster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Muster]:
    """A running Muster with six places for ranks; nothing may be left when it goes down."""
    home: Path = tmp_path_factory.mktemp("home") / "m"
    shared = {path.name for path in Path("/dev/shm").iterdir()}
    up = cli(home, "up", "--cpus", "6")
    assert up.returncode == 0, up.stderr
    client = Client.of_home(home)
    yield Muster(home, client)
    client.close()
    down = cli(home, "down")
    assert down.returncode == 0, down.stderr
    assert leftovers(home) == []
    assert {path.name for path in Path("/dev/shm").iterdir()} <= shared
