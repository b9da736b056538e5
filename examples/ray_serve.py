"""Serve a plan from several processes, of one machine or many, with Ray Serve.

Usage: python ray_serve.py MODEL.taper [--replicas N]

Each replica is a process with the server of `taper serve`; Ray's proxy sends a request to the one
with fewer requests, and starts a replica again that dies. A request that a replica took along is
answered with an error of the server; `ask` sets how often the client then asks again. Needs
`pip install 'ray[serve]' 'taper-runtime[serve]' openai`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ray import serve

if TYPE_CHECKING:
    from ray.serve import Application

#: The texts that a replica writes at once. Ray keeps further requests, so that another replica can
#: take them.
MAX_ACTIVE = 16

#: How often a client asks again, with pauses that grow from 0.5 to 8 seconds: longer than a replica
#: takes to be found dead and to be started again.
RETRIES = 8


def replicated(path: str, replicas: int) -> Application:
    """Return an application of Ray Serve with so many replicas; ``path`` is known on each machine.

    Requests call the model ``model``.
    """

    def build() -> Any:
        """Make the server of one replica, in its process."""
        from taper_runtime import SessionOptions
        from taper_runtime.serving import ServerLimits, make_application, open_model

        options = SessionOptions()
        options.intra_op_num_threads = 1  # as many as num_cpus below
        limits = ServerLimits(max_active=MAX_ACTIVE)
        return make_application([open_model("model", path, options, limits)], limits)

    deployment = serve.deployment(serve.ingress(build)()).options(
        name="taper",
        num_replicas=replicas,
        max_ongoing_requests=MAX_ACTIVE,
        health_check_period_s=2,
        ray_actor_options={"num_cpus": 1},
    )
    return deployment.bind()


def ask(address: str, messages: list[dict[str, str]], **options: Any) -> str:
    """Return the answer to a chat; ask again where a replica died.

    A seed among the options makes a later answer the same as the one that was lost.
    """
    from openai import OpenAI

    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=RETRIES) as client:
        found = client.chat.completions.create(model="model", messages=messages, **options)
    return found.choices[0].message.content or ""


def main() -> None:
    """Serve until Ctrl-C, at port 8000 of each machine of the cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL.taper")
    parser.add_argument("--replicas", type=int, default=2)
    args = parser.parse_args()
    serve.run(replicated(args.model, args.replicas), blocking=True)


if __name__ == "__main__":
    main()
