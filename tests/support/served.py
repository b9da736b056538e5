"""Serve models from a thread of this process, and ask them with the standard library alone."""

import http.client
import json
import socket
import threading
from contextlib import contextmanager

import uvicorn

from taper_runtime.serving import ServerLimits, make_application, open_model


class Served:
    """A server that runs: its address, models and application."""

    def __init__(self, models, port, application):
        self.models = {model.name: model for model in models}
        self.port, self.application = port, application

    def ask(self, path, body=None, headers=None, method=None):
        """The status, the headers and the body of an answer; JSON is read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            method = method or ("GET" if body is None else "POST")
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            content = answer.read()
            if answer.headers.get_content_type() == "application/json":
                content = json.loads(content)
            return answer.status, answer.headers, content
        finally:
            connection.close()

    def events(self, path, body):
        """The data of the events of a stream."""
        status, headers, content = self.ask(path, {**body, "stream": True})
        assert (status, headers.get_content_type()) == (200, "text/event-stream"), content
        lines = [line for line in content.decode().split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        return [line.removeprefix("data: ") for line in lines]

    def begin(self, path, body):
        """A connection on which a request has been sent, and nothing read."""
        data = json.dumps(body).encode()
        found = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        found.sendall(head.encode() + data)
        return found


@contextmanager
def serve(plans, limits=None, *, assistants=None, **options):
    """Serve plans by name; see :class:`Served`."""
    limits, assistants = limits or ServerLimits(), assistants or {}
    models = [
        open_model(name, plan, None, limits, assistant_model=assistants.get(name))
        for name, plan in plans.items()
    ]
    application = make_application(models, limits, **options)
    config = uvicorn.Config(application, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield Served(models, listening.getsockname()[1], application)
        finally:
            server.should_exit = True
            thread.join()
