"""Speed and memory of the statistics engine: prints the tables of docs/benchmarks.md.

Every figure is a ratio of two things timed in the same run, or says on how many cores it was measured.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import plain
from benchmarks.celeba import load_attributes
from excise import codec, foci, lfoci
from excise.incremental import available_cores

DOCS = Path(__file__).parents[1] / "docs"


def timed(work: Callable[..., Any], *arguments: Any, repeats: int = 1, **options: Any) -> tuple[float, Any]:
    """Median seconds, and the last result."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = work(*arguments, **options)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), result


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def current_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def warm_up() -> None:
    """Load the compiled code, of all the kinds that are used below."""
    rng = np.random.default_rng(0)
    for X in (rng.standard_normal((300, 20)), rng.integers(0, 2, (300, 20))):
        foci(X, X[:, 0] + X[:, 1] * X[:, 2], stop=False, max_features=4, random_state=0)
    foci(rng.integers(0, 2, (2**16 + 1, 3)), rng.random(2**16 + 1), stop=False, random_state=0)


def table(n: int, p: int, dtype: Any = np.float64) -> tuple[Any, Any]:
    """Normal columns, y made from four of them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p), dtype=dtype)
    y = 2 * X[:, 0] + X[:, 1] * X[:, 2] + np.sin(2 * X[:, 3]) + 0.1 * rng.standard_normal(n)
    return X, y


def against_others(quick: bool) -> str:
    from xicorpy import select_features_using_foci

    n, p, steps = (500, 100, 4) if quick else (2000, 1000, 8)
    X, y = table(n, p)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    ours, found = timed(foci, X, y, max_features=steps, repeats=5)
    kd_tree, by_tree = timed(plain.foci, X, y, steps)
    package, by_package = timed(select_features_using_foci, y, X, num_features=steps)
    chosen = found.indices.tolist()
    return (
        f"`foci`, n={n:,}, {p:,} columns, {len(chosen)} chosen: {ours:.2f} s\n\n"
        "| | seconds | excise is faster by | same selection |\n|---|---|---|---|\n"
        f"| plain kd-tree FOCI (`benchmarks/plain.py`, 2 cores) | {kd_tree:.1f} | {kd_tree / ours:.0f}× "
        f"| {'yes' if by_tree == chosen else 'NO'} |\n"
        f"| xicorpy 0.6 | {package:.1f} | {package / ours:.0f}× | {'yes' if list(by_package) == chosen else 'NO'} |\n"
    )


def _network(dtype: str, quick: bool, send: Any) -> None:
    warm_up()
    n, p = (200, 2000) if quick else (1000, 26_560)
    X, y = table(n, p, np.dtype(dtype))
    before = current_bytes()
    lfoci(X, y, stop=False, max_features=8, random_state=0)
    extra = (peak_bytes() - before) / X.nbytes
    sort, _ = timed(np.argsort, X, axis=0, repeats=5)
    ours, _ = timed(lfoci, X, y, stop=False, max_features=8, random_state=0, repeats=5)
    send.send((n, p, sort, ours, extra))


def all_slices_of_a_network(quick: bool) -> str:
    rows = []
    for dtype in ("float32", "float64"):
        n, p, sort, ours, extra = in_new_process(_network, dtype, quick)
        rows.append(f"| {dtype} | {sort:.2f} | {ours:.2f} | {ours / sort:.1f} | {extra:.1f} |")
    return (
        f"`lfoci`, n={n:,}, {p:,} columns (all slices of a ResNet-50), 8 steps\n\n"
        "| | one `numpy.argsort` along the samples, s | lfoci, s | ratio | memory beyond the input, copies of it |\n"
        "|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def _celeba_whole(folder: Path, send: Any) -> None:
    warm_up()
    values, names = load_attributes(folder)
    target = names.index("No_Beard")
    X, y = np.delete(values, target, axis=1), values[:, target]
    seconds, found = timed(lfoci, X, y, random_state=0)
    send.send((X.shape, seconds, peak_bytes(), [np.delete(names, target)[i] for i in found.indices[:5]], len(found)))


def whole_celeba(folder: Path) -> str:
    (n, p), seconds, memory, first, count = in_new_process(_celeba_whole, folder)
    return (
        f"`lfoci`, all {n:,} × {p} CelebA attributes, target No_Beard: {seconds:.0f} s on {available_cores()} cores, "
        f"{memory / 2**30:.2f} GiB in all. {count} attributes chosen, first {', '.join(first)}.\n"
    )


def celeba_speed(folder: Path, quick: bool) -> str:
    """The paper's figure "speed": one target after the other."""
    values, names = load_attributes(folder)
    n, targets = (2000, 3) if quick else (20_000, len(names))
    values = values[:n]
    rows = []
    for target in range(targets):
        X, y = np.delete(values, target, axis=1), values[:, target]
        exact, found = timed(foci, X, y, random_state=0)
        limit, again = timed(lfoci, X, y, random_state=0)
        noisy, noisy_found = timed(lfoci, X, y, noise=1e-4, random_state=0)
        assert found.indices.tolist() == again.indices.tolist()
        rows.append((names[target], exact, limit, noisy, len(found), len(noisy_found)))
        print(f"  {names[target]}: {exact:.2f} {limit:.2f} {noisy:.2f} s", flush=True)
    if not quick:
        plot_celeba(rows)
    lines = [f"| {a} | {b:.2f} | {c:.2f} | {d:.2f} | {e} | {f} |" for a, b, c, d, e, f in rows]
    total = [float(np.sum([row[k] for row in rows])) for k in (1, 2, 3)]
    return (
        f"A whole search for each CelebA attribute as target, {n:,} rows, seconds\n\n"
        + one_coefficient(values)
        + "\n![one pair of bars per attribute](images/celeba-speed.png)\n\n"
        "| target | `foci` (CODEC) | `lfoci` (vanishing noise) | `lfoci(noise=1e-4)` | chosen | chosen with noise |\n"
        "|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + f"\n| **all** | **{total[0]:.1f}** | **{total[1]:.1f}** | **{total[2]:.1f}** | | |\n"
    )


def one_coefficient(values: Any) -> str:
    """One T(Y, Z | X) by the textbook: this is where CODEC is slow, and L-CODEC is not."""
    rng = np.random.default_rng(0)
    rows = []
    for d in (1, 3, 8):
        points, y = values[:, :d].astype(float), values[:, 20]
        listing, _ = timed(plain.nearest_listing_ties, points, rng)
        noise, _ = timed(plain.nearest_with_noise, points, rng, repeats=5)
        ours, _ = timed(codec, y, points, random_state=0, repeats=5)
        rows.append(f"| {d} | {listing:.2f} | {noise:.3f} | {ours:.3f} |")
    return (
        f"One coefficient on the same {len(values):,} rows, seconds:\n\n"
        "| columns | textbook CODEC: list all ties, draw one | textbook L-CODEC: noise, then a kd-tree | `codec` |\n"
        "|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def plot_celeba(rows: list[Any]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(rows))
    axes.bar(places - 0.2, [row[1] for row in rows], width=0.4, color="#2f6f8f", label="CODEC (foci)")
    axes.bar(places + 0.2, [row[3] for row in rows], width=0.4, color="#d98c3f", label="L-CODEC (lfoci, noise 1e-4)")
    axes.set_xticks(places, [row[0] for row in rows], rotation=90, fontsize=8)
    axes.set_ylabel("seconds for the whole blanket")
    axes.set_title("Each CelebA attribute's blanket, 20,000 rows", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save(figure, "celeba-speed.png")


def growth(quick: bool) -> str:
    """Time against rows and against columns, with the exponents fitted in log-log."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    parts = []
    ns = (500, 1000) if quick else (500, 1000, 2000, 5000, 10_000, 20_000)
    ps = (100, 300) if quick else (100, 300, 1000, 3000, 10_000, 30_000)
    for axes, label, sizes, shapes in zip(
        figure.subplots(1, 2),
        ("rows (100 columns, 5 steps)", "columns (1,000 rows, 5 steps)"),
        (ns, ps),
        ([(n, 100) for n in ns], [(1000, p) for p in ps]),
        strict=True,
    ):
        seconds = []
        for n, p in shapes:
            X, y = table(n, p)
            seconds.append(timed(foci, X, y, stop=False, max_features=5, repeats=3)[0])
        exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
        axes.loglog(sizes, seconds, "o-", color="#2f6f8f")
        axes.set_xlabel(label)
        axes.set_ylabel("seconds")
        axes.set_title(f"exponent {exponent:.2f}", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        shown = ", ".join(f"{size:,}: {s:.3f} s" for size, s in zip(sizes, seconds, strict=True))
        parts.append(f"- against {label}: exponent {exponent:.2f} ({shown})")
    if not quick:
        save(figure, "growth.png")
    return "Growth of `foci`\n\n" + "\n".join(parts) + "\n\n![log-log plots](images/growth.png)\n"


def save(figure: Any, name: str) -> None:
    (DOCS / "images").mkdir(exist_ok=True)
    figure.savefig(DOCS / "images" / name, dpi=130)


def in_new_process(work: Callable[..., None], *arguments: Any) -> Any:
    """Run in a process of its own, so that the memory measured is that work's alone."""
    receive, send = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=work, args=(*arguments, send))
    process.start()
    send.close()
    result = receive.recv()
    process.join()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--only", help="run only the part with this name")
    parser.add_argument("--data-dir", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    celeba = options.data_dir / "celeba"
    parts: dict[str, Callable[[], str]] = {
        "others": lambda: against_others(options.quick),
        "network": lambda: all_slices_of_a_network(options.quick),
        "growth": lambda: growth(options.quick),
        "celeba": lambda: whole_celeba(celeba),
        "speed": lambda: celeba_speed(celeba, options.quick),
    }
    warm_up()
    sections = [
        "# Benchmarks of the statistics engine\n\n"
        "Printed by `make benchmark` (that is, `python -m benchmarks.statistics --write`), on "
        f"{available_cores()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"numpy {np.__version__}. Compare ratios, not seconds.\n"
    ]
    for name, part in parts.items():
        if options.only in (None, name):
            if name in ("celeba", "speed") and not celeba.exists():
                sections.append(f"## {name}\n\nSkipped: no CelebA attributes in {celeba.name}/ (see --data-dir).\n")
            else:
                sections.append(f"## {name}\n\n{part()}")
            print(sections[-1], flush=True)
    if options.write:
        (DOCS / "benchmarks.md").write_text("\n".join(sections))


if __name__ == "__main__":
    main()
