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
from excise import codec, foci, lfoci
from excise._support.files import write_figure, write_whole
from excise.datasets.celeba import load_attributes
from excise.datasets.files import default_folder
from excise.statistics._incremental import available_cores

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
    """The paper's figure "speed": CODEC against L-CODEC, one target after the other."""
    values, names = load_attributes(folder)
    n, targets = (2000, 3) if quick else (20_000, len(names))
    values = values[:n]
    rng = np.random.default_rng(0)
    rows = []
    for target in range(targets):
        X, y = np.delete(values, target, axis=1), values[:, target]
        points = X[:, rng.choice(X.shape[1], 8, replace=False)].astype(float)
        listed, _ = timed(plain.nearest_listing_ties, points, rng)
        jittered, _ = timed(plain.nearest_with_noise, points, rng)
        one, _ = timed(codec, y, points, random_state=0)
        exact, found = timed(foci, X, y, random_state=0)
        limit, again = timed(lfoci, X, y, random_state=0)
        noisy, noisy_found = timed(lfoci, X, y, noise=1e-4, random_state=0)
        if found.indices.tolist() != again.indices.tolist():
            raise AssertionError("foci and lfoci with vanishing noise differ")
        times = (listed, jittered, one, exact, limit, noisy)
        rows.append((names[target], *times, len(found), len(noisy_found)))
        print(f"  {names[target]}: " + ", ".join(f"{seconds:.3f}" for seconds in times), flush=True)
    if not quick:
        plot_celeba(rows)
    lines = ["| " + " | ".join([row[0], *(f"{t:.3f}" for t in row[1:7]), *map(str, row[7:])]) + " |" for row in rows]
    total = " | ".join(f"**{np.sum([row[k] for row in rows]):.1f}**" for k in range(1, 7))
    return (
        f"CODEC against L-CODEC on {n:,} rows of CelebA, each attribute as target in turn, seconds. The first three "
        "columns are one coefficient (the neighbours in 8 other attributes): the textbook's CODEC lists all equally "
        "near rows and draws one, its L-CODEC adds noise first, and this is where the paper's speed-up comes from. "
        "`codec` draws without listing, so that nothing is left for the noise to save. The others are whole searches; "
        "noise that is really added takes away the equal rows that make them quick.\n\n"
        "![one group of bars per attribute](images/celeba-speed.png)\n\n"
        "| target | textbook CODEC | textbook L-CODEC | `codec` | `foci` | `lfoci` | `lfoci(noise=1e-4)` "
        "| chosen | chosen with noise |\n|---|---|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + f"\n| **all** | {total} | | |\n"
    )


def plot_celeba(rows: list[Any]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    places = np.arange(len(rows))
    groups = (
        ("one coefficient", ("textbook CODEC", "textbook L-CODEC", "codec"), 1),
        ("a whole search", ("foci (CODEC)", "lfoci (L-CODEC)", "lfoci, noise=1e-4"), 4),
    )
    for axes, (title, labels, first) in zip(figure.subplots(2, 1, sharex=True), groups, strict=True):
        for k, (label, color) in enumerate(zip(labels, ("#8c8c8c", "#d98c3f", "#2f6f8f"), strict=True)):
            heights = [row[first + k] for row in rows]
            axes.bar(places + 0.27 * (k - 1), heights, width=0.27, color=color, label=label)
        axes.set_yscale("log")
        axes.set_ylabel("seconds")
        axes.set_title(f"{title}, 20,000 rows of CelebA", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    axes.set_xticks(places, [row[0] for row in rows], rotation=90, fontsize=8)
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
    write_figure(DOCS / "images" / name, figure, dpi=130)


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
    parser.add_argument("--data-dir", type=Path, default=default_folder())
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
    if options.write and options.only is None:
        write_whole(DOCS / "benchmarks.md", "\n".join(sections))


if __name__ == "__main__":
    main()
