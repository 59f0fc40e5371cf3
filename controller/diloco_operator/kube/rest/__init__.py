"""The client of a real API server: `async with RestClient.connect(load_config()) as client`."""

from diloco_operator.kube.rest.client import RestClient
from diloco_operator.kube.rest.config import ClientConfig, load_config
from diloco_operator.kube.rest.config_error import ConfigError
from diloco_operator.kube.rest.server_clock import ServerClock

__all__ = ["ClientConfig", "ConfigError", "RestClient", "ServerClock", "load_config"]
