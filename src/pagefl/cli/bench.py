"""`pagefl bench`: benchmarks on this machine."""

import typer

from .terminal import Json, Quick, console, err, show_result

app = typer.Typer(no_args_is_help=True, help="Measure this machine: ratios of one run, alternating.")


@app.command()
def engine(json: Json = False, quick: Quick = False) -> None:
    """The engine against a plain per-client loop, on every workload."""
    from pagefl.bench import engine as bench

    result = bench.engine(quick=quick, say=err.print)
    show_result(result, bench.table(result), json)


@app.command()
def paths(json: Json = False, quick: Quick = False) -> None:
    """Training and evaluation by a plan against row by row, in CPU time of one core."""
    from pagefl.bench import training_paths

    result = training_paths.paths(quick=quick, say=err.print)
    show_result(result, training_paths.table(result), json)


@app.command()
def rounds(json: Json = False, quick: Quick = False) -> None:
    """Whole rounds by plans against whole rounds row by row, with two workers."""
    from pagefl.bench import whole_rounds

    result = whole_rounds.rounds(quick=quick, say=err.print)
    show_result(result, whole_rounds.table(result), json)


@app.command()
def algorithms(json: Json = False, quick: Quick = False) -> None:
    """Seconds per round of every algorithm, as a multiple of FedAvg's."""
    from pagefl.bench import algorithm_cost

    result = algorithm_cost.algorithms(quick=quick, say=err.print)
    show_result(result, algorithm_cost.table(result), json)


@app.command()
def agents(json: Json = False, quick: Quick = False) -> None:
    """Time that agents take in a round, for PAGE's players and for players that share a policy."""
    from pagefl.bench import round_parts

    result = round_parts.agents(quick=quick, say=err.print)
    show_result(result, round_parts.agents_table(result), json)


@app.command()
def table5(json: Json = False, quick: Quick = False) -> None:
    """The paper's Table 5: time of each part of a round of PAGE."""
    from pagefl.bench import round_parts

    result = round_parts.table5(quick=quick, say=err.print)
    show_result(result, round_parts.table5_table(result), json)


@app.command()
def cluster(json: Json = False, quick: Quick = False) -> None:
    """A round on Ray's actors against a round with local workers, and the bytes that move."""
    from pagefl.bench import cluster_cost

    result = cluster_cost.costs(quick=quick, say=err.print)
    show_result(result, cluster_cost.table(result), json)
    if not json:
        console.print(cluster_cost.table_of_bytes(result))


@app.command()
def clients(json: Json = False, quick: Quick = False) -> None:
    """Seconds per round and peak memory with a thousand to a million clients, and the same cohort."""
    from pagefl.bench import client_counts

    result = client_counts.clients(quick=quick, say=err.print)
    show_result(result, client_counts.table(result), json)
