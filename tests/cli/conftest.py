"""What every test of the command line starts from."""

import pytest
from support.configs import base

from transformer import config, parallel


@pytest.fixture(autouse=True)
def started(monkeypatch):
    """Leave the devices of this process alone; record what was asked for."""
    devices = []

    def start(device):
        devices.append(device)
        return f"devices: {device}"

    monkeypatch.setattr(parallel, "start", start)
    return devices


@pytest.fixture
def trained(tmp_path):
    """Return the folder of a run of which the configuration alone is there."""
    (tmp_path / "config.json").write_text(config.to_json(base()))
    return tmp_path
