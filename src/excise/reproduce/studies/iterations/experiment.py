"""The iterations experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.iterations.claims import judge
from excise.reproduce.studies.iterations.measure import Settings, measure
from excise.reproduce.studies.iterations.plot import draw

EXPERIMENT = Experiment(
    name="iterations",
    title="convergence by repeated application",
    where="Theorem 1",
    data="4,000 images of MNIST, logistic regression",
    published=Settings(),
    settings=Settings(),
    quick=Settings(samples=300, iterations=(1, 2, 4), repetitions=4, runs=2, epochs=5, copies=128),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
The model is trained to the exact minimum, and retrained to the exact minimum without the sample, both by Newton's
method in double precision, so that distances have a meaning. *Ours* is `Descent(steps=k)`: block Newton steps on the
objective without the sample, the first block by L-FOCI and the later ones where that objective is steepest; *ours, all
slices* the same with all of them in every block. *One step, again and again* is our single step applied to its own
outcome, *paper* the published step applied to its own.
""",
    size=(6.5, 4.0),
)
