"""What Locust's users write today: FastHttpUser, paced by constant_throughput. RATE is the total over all users."""

import os

from locust import FastHttpUser, constant_throughput, task

BODY = b"x" * int(os.environ["BODY_BYTES"])
USERS = int(os.environ["USERS"])


class Sender(FastHttpUser):
    wait_time = constant_throughput(float(os.environ["RATE"]) / USERS)
    connection_timeout = network_timeout = 10

    @task
    def infer(self) -> None:
        self.client.post("/v2/models/null/infer", data=BODY)
