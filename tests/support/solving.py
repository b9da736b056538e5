"""Solve models of constraints with OR-Tools, alike on every machine."""


def solved(model, effort):
    """Return a solver that has a solution of a model.

    ``effort`` is what it may do, in its own deterministic seconds.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return solver
