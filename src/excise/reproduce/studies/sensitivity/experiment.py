"""The sensitivity experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.sensitivity.claims import judge
from excise.reproduce.studies.sensitivity.measure import Settings, measure
from excise.reproduce.studies.sensitivity.plot import draw

EXPERIMENT = Experiment(
    name="sensitivity",
    title="ξ per pixel as an explanation",
    where="Remark 2",
    data="MNIST (a network of 784-128-64-10 units) and CIFAR-10 (a pretrained ResNet-20)",
    published=Settings(),
    settings=Settings(),
    quick=Settings(
        mnist_images=3,
        cifar_images=2,
        copies=64,
        steps=8,
        studied=1,
        copies_tried=(64, 128),
        noises_tried=(0.1, 1.0),
        samples=500,
        epochs=2,
        shown=1,
    ),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
The remark has no figure and no figures: it is measured here whether ξ is an explanation. An image is perturbed by
Gaussian noise, and every pixel gets Chatterjee's ξ of its noise and the loss (`excise.evidence.sensitivity`); for
*squares* all pixels of a 4 × 4 square share one noise. The noise of a pixel is the same in all channels. The gradient's
map is the size of the loss's gradient with respect to the input, summed over channels (and averaged over squares). If a
map tells what the network looks at, the probability of the true class falls fast when pixels are replaced, the most
important first, by the training images' mean (*deletion*), and rises fast when they are put into that mean
(*insertion*); both are compared with a random order on the same images. Bands are one standard error over images.

Whether a map shows the network or its own noise is told by a second map of other perturbations: where the two are not
alike (rank correlation about 0), there is nothing to read in either. Of a weak influence, ξ is about half its share in
the loss's variance (0.55 for a Gaussian one). With 784 or 1,024 pixels perturbed at once that share is one in a
thousand, far below ξ's own noise of 0.6 / √copies: 0.02 for 1,000 copies.
""",
    size=(13.0, 7.0),
)
