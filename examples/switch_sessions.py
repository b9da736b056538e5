"""Switch between two sessions of one model, one within a memory budget, while requests arrive.

A controller watches the session's times and the memory of all arenas, and advises which session
new requests take. Requests that are running end where they began, so none is lost; both sessions
give the same bits.

Usage: python switch_sessions.py
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

import taper_frontend
import taper_runtime

#: Requests between two looks at the statistics, and the most looks until a switch.
WINDOW, MOST_WINDOWS = 20, 50


class Skip(torch.nn.Module):
    """A tensor that is made first and read last, over layers that are small in between."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(8192, 8), (8, 8192), (8192, 8), (8, 8192)]
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a [1, 8192] tensor."""
        y = torch.exp(x).softmax(-1)
        return self.layers(y) * y.flip(-1)


def open_sessions() -> dict[str, taper_runtime.InferenceSession]:
    """Export the model twice, and open a session of each plan, by the mode that it serves."""
    torch.manual_seed(0)
    model, example = Skip().eval(), (torch.randn(1, 8192),)
    plans = {
        "balanced": taper_frontend.export(model, example),
        "memory_first": taper_frontend.export(model, example, memory_budget=60_000),
    }
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return {mode: taper_runtime.InferenceSession(plan, options) for mode, plan in plans.items()}


def main() -> None:
    """Serve requests under memory pressure and after it."""
    sessions = open_sessions()
    # pressure lasts, so it shall not lead back; and times vary on a busy machine
    rails = taper_runtime.RuntimeRails(
        latency_regression_threshold=1.0,
        throughput_regression_threshold=1.0,
        enable_hard_rollback=False,
    )
    controller = taper_runtime.RuntimeController(rails)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, 8192), np.float32) for _ in range(4)]
    expected = [sessions["balanced"].run(None, {"x": x})[0].tobytes() for x in inputs]
    sent, answered = 0, 0

    def answer(number: int) -> bool:
        session = sessions[controller.mode]  # a running request keeps its session
        (y,) = session.run(None, {"x": inputs[number % 4]})
        return bytes(y.tobytes()) == expected[number % 4]

    with ThreadPoolExecutor(4) as pool:
        for wanted, allowed in (("memory_first", 250_000), ("balanced", 10_000_000)):
            for _ in range(MOST_WINDOWS):
                requests = [pool.submit(answer, sent + i) for i in range(WINDOW)]
                sent += WINDOW
                session = sessions[controller.mode]
                stats = session.stats()
                assert stats.layout is not None
                needed = 4 * stats.layout.arena_bytes  # by as many requests at a time
                controller.observe(
                    stats,
                    pressure_score=max(0.0, needed / allowed - 1),
                    pressure_events=int(needed > allowed),
                )
                answered += sum(request.result() for request in requests)
                if controller.mode == wanted:
                    break
            assert controller.mode == wanted
            print(f"{allowed} bytes allowed: new requests take the session {wanted!r}")
    print(f"{answered} of {sent} requests were answered with the same bits")
    assert answered == sent
    assert all(session.stats().runs for session in sessions.values())


if __name__ == "__main__":
    main()
