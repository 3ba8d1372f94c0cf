"""A loop of reinforcement learning: a trainer, two inference engines, and a controller."""

import http.client
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
import torch.distributed as dist


def join_weights(number, port):
    """Join the group in which the trainer sends its weights to the engines."""
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=number, world_size=3)


def train(port):
    """Train a step, and send the weights."""
    join_weights(0, port)
    dist.all_reduce(torch.full((3,), 0.5))


def serve(number, port, weights_port):
    """Join the group, and answer one request of the controller: receive the weights."""
    join_weights(1 + number, weights_port)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            weights = torch.zeros(3)
            dist.all_reduce(weights)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(str(weights.tolist()).encode())

    HTTPServer(("127.0.0.1", port), Handler).handle_request()


def update(port):
    """Ask one engine to receive the weights; return its answer."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            connection.request("POST", "/update_weights")
        except ConnectionRefusedError:  # it does not listen yet
            time.sleep(0.05)
        else:
            return connection.getresponse().read()


def update_each(ports):
    """Ask one engine after the other, though the first waits for the second in the group."""
    return [update(port) for port in ports]


def update_all(ports):
    """Ask all engines at once."""
    threads = [threading.Thread(target=update, args=(port,)) for port in ports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
