"""The uvicorn server, which finishes the jobs that judges have taken before it stops."""

from __future__ import annotations

import socket
from types import FrameType

import uvicorn

from cudal1_env.errors import SettingsError
from cudal1_env.service.app import AppOptions, create_app
from cudal1_env.service.dispatch import Dispatcher


class Server(uvicorn.Server):
    """A uvicorn server that drops queued jobs at a stop signal.

    Args:
        dispatcher: A dispatcher that is not started yet.
        options: What the service accepts.

    Raises:
        MachineError: No judge starts.
        SettingsError: The judges have different models.
    """

    def __init__(self, dispatcher: Dispatcher, options: AppOptions) -> None:
        self.facts = dispatcher.start()
        self._dispatcher = dispatcher
        app = create_app(dispatcher, self.facts, options)
        super().__init__(uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=65))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop: queued jobs are answered with 503, those that judges have taken are finished.

        Unlike uvicorn's handler, it does not raise the signal again afterwards.
        """
        self._dispatcher.drain()
        self.force_exit = self.should_exit  # true at the second signal
        self.should_exit = True


def url_of(host: str, port: int) -> str:
    """Return the URL of an address.

    >>> url_of("::1", 8011)
    'http://[::1]:8011'
    """
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """Open the service's address; port 0 takes a free one.

    Raises:
        SettingsError: The port is invalid, or the address is in use or not this machine's.
    """
    if not 0 <= port < 1 << 16:  # getaddrinfo takes any number and keeps its last 16 bits
        raise SettingsError(f"the port is {port}; choose a --port from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingsError(f"cannot listen on {host}:{port}: {error}") from error
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(1024)
    except OSError as error:
        opened.close()
        raise SettingsError(f"cannot listen on {host}:{port}: {error}; choose another --port or --host") from error
    return opened
