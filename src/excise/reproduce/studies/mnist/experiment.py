"""The MNIST experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.mnist.claims import judge
from excise.reproduce.studies.mnist.measure import Settings, measure
from excise.reproduce.studies.mnist.plot import draw

NOTES = """
Three rows, each with the paper's three choices of slices. *Paper*: the published step and noise; each removal starts
from the weights that the last one left, noise included, as in the published code, which also keeps the number of
samples at that of the training set throughout. (That code takes back a removal that costs more than 5 points of
validation accuracy, and removes another sample in its place; here none is taken back. Its sample's Hessian is 0 by an
oversight; here it is computed.) *Paper, without its noise*: the same step alone. *Ours*: `Unlearner`, one request for
each sample, with the curvature that it computes itself and L-FOCI for each layer, from as many perturbed copies; no
noise, since the honest constants ask for one that leaves no model (see the row about the noise). Random sets have the
sizes of L-FOCI's for the same sample and step (with ours, in each layer), and are drawn anew for every removal.

As in the published scripts one model is trained, and runs differ in which samples are removed; validation is on MNIST's
test set. The sample gradient norm is that of the sample just removed, over all weights, and the curve its mean over all
removals so far.
"""

LOGISTIC = Experiment(
    name="mnist-logistic",
    title="1,000 removals from logistic regression on MNIST",
    where="Figure 5, left",
    data="all of MNIST",
    published=Settings(),
    settings=Settings(runs=2, curvature_samples=2000),
    quick=Settings(samples=400, removals=6, runs=1, epochs=3, copies=64, curvature_samples=200, every=3),
    measure=measure,
    draw=draw,
    judge=judge,
    notes=NOTES
    + """
After SGD the model is brought to the exact minimum by Newton's method, and so is the retrained one: what SGD leaves
undone after 50 epochs is as far as what 1,000 of 60,000 samples change, and distances would mean nothing. Our curvature
is taken from fewer samples than by default (20,000), for the sake of time: with all of them less distance is left.
""",
    size=(13.0, 8.0),
)

TWO_LAYERS = Experiment(
    name="mnist-2nn",
    title="1,000 removals from a two-layer network on MNIST",
    where="Figure 5, left, for the network that the published scripts add",
    data="all of MNIST",
    published=Settings(sizes=(784, 100, 10), curvature_samples=1000),
    settings=Settings(sizes=(784, 100, 10), curvature_samples=1000, runs=2, copies=500),
    quick=Settings(
        sizes=(784, 16, 10), samples=400, removals=6, runs=1, epochs=3, copies=64, curvature_samples=200, every=3
    ),
    measure=measure,
    draw=draw,
    judge=judge,
    notes=NOTES
    + """
The paper has no figure for this network; its scripts have the experiment. *Full* with our curvature is a K-FAC step of
all slices, since a full Hessian of 79,510 parameters is not to be had. L-FOCI over all slices together, as in the
paper, hardly looks past the output layer, whose activations tell all about the loss; ours chooses in every layer. How
near a network's weights are to retrained ones says nothing, so there are no distances here; and the retrained network's
accuracies differ from the original's by the chance of SGD more than by the samples.
""",
    size=(11.0, 8.0),
)
